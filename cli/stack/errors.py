"""Errors of the embedded stack."""

from core.errors import MillraceError


class StackError(MillraceError):
    """The embedded stack cannot run."""

    code = "stack_failed"


class JarUnavailableError(StackError):
    """A jar of the broker cannot be downloaded."""

    code = "jar_unavailable"


class JarMismatchError(StackError):
    """A downloaded jar does not have the checksum in the lock file."""

    code = "jar_mismatch"


class StackTimeoutError(StackError):
    """A service or role of the embedded stack was not ready in time."""

    code = "stack_timeout"


class SettingsRefusedError(StackError):
    """A role cannot run with its settings."""

    code = "settings_refused"


class DataFolderInUseError(StackError):
    """Another stack runs on this data folder."""

    code = "data_folder_in_use"
