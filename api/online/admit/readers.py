"""What readers of whole answers may cost in memory: the bytes that wait for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from api.online.admit.admission import queue_full
from api.online.memory_limits import LimitExceeded, MemoryLimit
from api.runtime.tenant_slots import tenant_share

LARGE_BYTES: Final = 64 * 1024
"""Longer answers take room: what is not longer lies in the transport alone."""

_REFUSALS: Final = {
    LimitExceeded.OF_ROOM: (503, "Too many large answers wait for their readers."),
    LimitExceeded.OF_SHARE: (
        429,
        "Too many large answers of your organization wait for their readers.",
    ),
}


class Readers:
    """The bound that readers of one process share."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` may wait for all, half of it for those of one tenant.

        One of any size may wait alone: refused, it would never be given.
        """
        self._room = MemoryLimit(bytes_max, of_tenant_max=tenant_share(bytes_max))

    @contextmanager
    def hold(self, tenant_id: UUID, byte_count: int) -> Iterator[None]:
        """Hold room for an answer until its end is written. Raises ApiError: 503, 429."""
        lack = None
        if self._room.is_unused:
            self._room.take_more(tenant_id, byte_count)
        else:
            lack = self._room.take(tenant_id, byte_count)
        if lack is not None:
            raise queue_full(*_REFUSALS[lack], 1.0)
        try:
            yield
        finally:
            self._room.give_back(tenant_id, byte_count)
