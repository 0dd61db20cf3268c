"""The error base: each class says who is at fault, so that loops, logs and answers agree."""

from enum import StrEnum
from typing import ClassVar


class Disposition(StrEnum):
    """Who is at fault, hence what the process loop does next."""

    RETRY = "retry"  # the world: try the same work again, later
    REJECT = "reject"  # the input: record the failure, never retry
    CRASH = "crash"  # this process: stop without committing


class MillraceError(Exception):
    """An internal error."""

    code: ClassVar[str] = "internal"
    disposition: ClassVar[Disposition] = Disposition.CRASH

    def __init__(self, message: str | None = None, **facts: object) -> None:
        """Use the class docstring as the message; `facts` are for logs, never for clients."""
        super().__init__(message or self.__doc__)
        self.facts = facts


class SettingsError(MillraceError):
    """The settings are not valid."""

    code = "invalid_settings"


class SchemaTooNewError(MillraceError):
    """A record carries a schema version that this release does not know."""

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
    """The pool cannot execute items at the moment; no attempt is charged."""

    code = "pool_unavailable"
    disposition = Disposition.RETRY


class PoolBusyError(PoolUnavailableError):
    """The pool takes this item not now; what it has taken goes on, and it takes others."""

    code = "pool_busy"

    def __init__(
        self, message: str | None = None, *, stated_s: float | None = None, **facts: object
    ) -> None:
        """`stated_s` is how long the pool asks to be left alone."""
        super().__init__(message, **facts)
        self.stated_s = stated_s


class EngineDeadError(MillraceError):
    """The engine died; the process must end with its offsets uncommitted."""

    code = "engine_dead"


class EngineOutOfMemoryError(MillraceError):
    """What was asked at once does not fit the engine's memory; the engine lives."""

    code = "engine_out_of_memory"
    disposition = Disposition.RETRY


class EngineStalledError(EngineDeadError):
    """The engine does not react any more; the process must end with its offsets uncommitted."""

    code = "engine_stalled"
