"""Reads of the object store that end when a search has taken too long."""

from core.clock import Clock
from core.errors import Disposition, MillraceError
from storage.objects.object_store import ObjectBlocks, ObjectStore


class SearchOverdueError(MillraceError):
    """The search took too long."""

    code = "search_overdue"
    disposition = Disposition.RETRY


class TimedReads:
    """Reads of one search. A read that hangs is the store's to end."""

    def __init__(self, store: ObjectStore, clock: Clock, *, time_s_max: float) -> None:
        """The search begins now."""
        self._store, self._clock = store, clock
        self._until_s = clock.monotonic_s() + time_s_max

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        """See `ObjectStore`. Its blocks raise SearchOverdueError when time is up."""
        blocks = self._store.read(key, offset=offset, length=length)

        def read_in_time(_: int) -> bytes:
            if self._clock.monotonic_s() > self._until_s:
                raise SearchOverdueError
            return next(blocks, b"")

        return ObjectBlocks(read_in_time, blocks.close, None)
