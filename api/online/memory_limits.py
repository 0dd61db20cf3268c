"""Memory limits of one API process: bytes of request bodies, of responses and of stream recordings.

Tenants share each limit. One tenant may reserve about half of it.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Final
from uuid import UUID

from api.online.call_errors import queue_full
from api.runtime.tenant_slots import tenant_share

LARGE_BYTES: Final = 64 * 1024
"""Responses above this size reserve memory. Smaller ones fit the buffer of the transport."""


class LimitExceeded(Enum):
    """Why a reservation failed."""

    TOTAL = auto()  # not enough bytes are free
    TENANT = auto()  # the free bytes are reserved for other tenants


_BODY_REFUSALS: Final = {
    LimitExceeded.TOTAL: (503, "Too many large calls arrive at once."),
    LimitExceeded.TENANT: (429, "Too many large calls of your organization arrive at once."),
}
_RESPONSE_REFUSALS: Final = {
    LimitExceeded.TOTAL: (503, "Too many large answers wait for their readers."),
    LimitExceeded.TENANT: (
        429,
        "Too many large answers of your organization wait for their readers.",
    ),
}


class MemoryLimit:
    """A number of bytes that tenants share; each may reserve `tenant_bytes_max` of them."""

    def __init__(self, bytes_max: int, *, tenant_bytes_max: int) -> None:
        self._free, self._tenant_bytes_max = bytes_max, tenant_bytes_max
        self._reserved: Counter[UUID] = Counter()

    @property
    def is_unused(self) -> bool:
        """Whether no bytes are reserved."""
        return not self._reserved

    def reserve(self, tenant_id: UUID, byte_count: int) -> LimitExceeded | None:
        """Reserve bytes. When that exceeds a limit, reserve nothing and return which limit."""
        if byte_count > self._free:
            return LimitExceeded.TOTAL
        if self._reserved[tenant_id] + byte_count > self._tenant_bytes_max:
            return LimitExceeded.TENANT
        self.reserve_unchecked(tenant_id, byte_count)
        return None

    def reserve_unchecked(self, tenant_id: UUID, byte_count: int) -> None:
        """Reserve bytes beyond the limits. Other reservations fail until enough are released."""
        self._free -= byte_count
        self._reserved[tenant_id] += byte_count

    def release(self, tenant_id: UUID, byte_count: int) -> None:
        """Release reserved bytes."""
        self._free += byte_count
        self._reserved[tenant_id] -= byte_count
        if not self._reserved[tenant_id]:
            del self._reserved[tenant_id]


def body_memory_limit(bytes_max: int, *, body_bytes_max: int) -> MemoryLimit:
    """Return the limit of request bodies; a tenant may always send one body of full size."""
    return MemoryLimit(bytes_max, tenant_bytes_max=max(tenant_share(bytes_max), body_bytes_max))


def recording_memory_limit(bytes_max: int) -> MemoryLimit:
    """Return the limit of recordings of streams that have an idempotency key."""
    return MemoryLimit(bytes_max, tenant_bytes_max=bytes_max // 2)


class BodyReservation:
    """The bytes that the body of one call has reserved."""

    __slots__ = ("_limit", "_reserved_bytes", "tenant_id")

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self.tenant_id: UUID | None = None  # before authentication
        self._reserved_bytes = 0

    def assign_tenant(self, tenant_id: UUID) -> None:
        """Set the tenant, before anything is reserved."""
        assert not self._reserved_bytes
        self.tenant_id = tenant_id

    def grow_to(self, byte_count: int) -> None:
        """Reserve `byte_count` in total.

        Raises ApiError: 503 when not enough bytes are free, 429 when the tenant has its share.
        """
        assert self.tenant_id is not None
        if byte_count > self._reserved_bytes:
            exceeded = self._limit.reserve(self.tenant_id, byte_count - self._reserved_bytes)
            if exceeded is not None:
                raise queue_full(*_BODY_REFUSALS[exceeded], 1.0)
            self._reserved_bytes = byte_count

    def release(self) -> None:
        """Release all bytes; further calls have no effect."""
        if self.tenant_id is not None and self._reserved_bytes:
            self._limit.release(self.tenant_id, self._reserved_bytes)
            self._reserved_bytes = 0


class ResponseMemoryLimit:
    """The limit of complete responses that wait for slow clients."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` may be reserved in total, half of it by one tenant.

        A response of any size may be sent while nothing else is reserved: otherwise a response
        above the limit would always be refused.
        """
        self._limit = MemoryLimit(bytes_max, tenant_bytes_max=tenant_share(bytes_max))

    @contextmanager
    def reserve(self, tenant_id: UUID, byte_count: int) -> Iterator[None]:
        """Reserve memory until the response is written. Raises ApiError: 503, 429."""
        exceeded = None
        if self._limit.is_unused:
            self._limit.reserve_unchecked(tenant_id, byte_count)
        else:
            exceeded = self._limit.reserve(tenant_id, byte_count)
        if exceeded is not None:
            raise queue_full(*_RESPONSE_REFUSALS[exceeded], 1.0)
        try:
            yield
        finally:
            self._limit.release(tenant_id, byte_count)
