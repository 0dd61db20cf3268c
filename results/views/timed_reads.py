"""Reads of the object store with a deadline for a search."""

from core.clock import Clock
from core.errors import Disposition, MillraceError
from storage.objects.object_store import ObjectBlocks, ObjectStore


class SearchOverdueError(MillraceError):
    """The search took too long."""

    code = "search_overdue"
    disposition = Disposition.RETRY


class TimedReads:
    """The reads of one search. The store bounds a single read that hangs."""

    def __init__(self, store: ObjectStore, clock: Clock, *, time_s_max: float) -> None:
        self._store, self._clock = store, clock
        self._until_s = clock.monotonic_s() + time_s_max

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        """See `ObjectStore`. The blocks raise SearchOverdueError after the deadline."""
        blocks = self._store.read(key, offset=offset, length=length)

        def read_in_time(_: int) -> bytes:
            if self._clock.monotonic_s() > self._until_s:
                raise SearchOverdueError
            return next(blocks, b"")

        return ObjectBlocks(read_in_time, blocks.close, None)
