"""The base of all errors: each class has a stable code and a disposition."""

from enum import StrEnum
from typing import ClassVar


class Disposition(StrEnum):
    """What a process loop does after an error."""

    RETRY = "retry"  # a dependency failed: try the same work again later
    REJECT = "reject"  # the input is bad: record the failure, never retry
    CRASH = "crash"  # this process is at fault: stop without committing


class MillraceError(Exception):
    """An internal error."""

    code: ClassVar[str] = "internal"
    disposition: ClassVar[Disposition] = Disposition.CRASH

    def __init__(self, message: str | None = None, **facts: object) -> None:
        """The message defaults to the class docstring; `facts` are for logs, never for clients."""
        super().__init__(message or self.__doc__)
        self.facts = facts


class SettingsError(MillraceError):
    """The settings are not valid."""

    code = "invalid_settings"


class SchemaTooNewError(MillraceError):
    """A record has a newer schema version than this release knows."""

    code = "schema_too_new"


class RecordUnreadableError(MillraceError):
    """A record cannot be decoded."""

    code = "record_unreadable"
    disposition = Disposition.REJECT


class LeaseLostError(MillraceError):
    """Another process holds the lease now."""

    code = "lease_lost"
    disposition = Disposition.RETRY


class PoolUnavailableError(MillraceError):
    """The pool cannot execute items now. No attempt is charged."""

    code = "pool_unavailable"
    disposition = Disposition.RETRY


class PoolBusyError(PoolUnavailableError):
    """The pool refuses this item for now. Its other items continue."""

    code = "pool_busy"

    def __init__(
        self, message: str | None = None, *, stated_s: float | None = None, **facts: object
    ) -> None:
        """`stated_s` is the delay that the pool's Retry-After requests."""
        super().__init__(message, **facts)
        self.stated_s = stated_s


class EngineDeadError(MillraceError):
    """The engine died. The process must end without committing offsets."""

    code = "engine_dead"


class EngineOutOfMemoryError(MillraceError):
    """The concurrent items do not fit the engine's memory. The engine is alive."""

    code = "engine_out_of_memory"
    disposition = Disposition.RETRY


class EngineStalledError(EngineDeadError):
    """The engine is stalled. The process must end without committing offsets."""

    code = "engine_stalled"
