"""Why the embedded stack cannot start or go on."""

from core.errors import MillraceError


class StackError(MillraceError):
    """The embedded stack cannot run."""

    code = "stack_failed"


class JarUnavailableError(StackError):
    """A jar of the broker cannot be downloaded."""

    code = "jar_unavailable"


class JarMismatchError(StackError):
    """A downloaded jar is not the one that the lock names."""

    code = "jar_mismatch"


class StackTimeoutError(StackError):
    """A part of the embedded stack was not ready in time."""

    code = "stack_timeout"


class SettingsRefusedError(StackError):
    """A role cannot run with its settings."""

    code = "settings_refused"


class DataFolderInUseError(StackError):
    """Another stack runs on this data folder."""

    code = "data_folder_in_use"
