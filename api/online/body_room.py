"""How many bytes of bodies this process holds at once, from their arrival to their record."""

from collections import Counter
from uuid import UUID

from api.online.admission import queue_full
from api.slots import tenant_share


class BodyRoom:
    """Room for bodies: thousands of calls may arrive at once, each with megabytes."""

    def __init__(self, bytes_max: int, *, body_bytes_max: int) -> None:
        """All of it is free. A tenant has half of it, and no less than one body may take."""
        self._free = bytes_max
        self._of_tenant_max = max(tenant_share(bytes_max), body_bytes_max)
        self._of_tenant: Counter[UUID] = Counter()

    def take(self, tenant_id: UUID, byte_count: int) -> None:
        """Take room. Raises ApiError: 503 when there is not enough, 429 when it is for others."""
        if byte_count > self._free:
            raise queue_full(503, "Too many large calls arrive at once.", 1.0)
        if self._of_tenant[tenant_id] + byte_count > self._of_tenant_max:
            raise queue_full(429, "Too many large calls of your organization arrive at once.", 1.0)
        self._free -= byte_count
        self._of_tenant[tenant_id] += byte_count

    def give_back(self, tenant_id: UUID, byte_count: int) -> None:
        """Return room that was taken."""
        self._free += byte_count
        self._of_tenant[tenant_id] -= byte_count
        if not self._of_tenant[tenant_id]:
            del self._of_tenant[tenant_id]


class BodyHold:
    """The room that one call's body takes."""

    __slots__ = ("_held", "_room", "_tenant_id")

    def __init__(self, room: BodyRoom) -> None:
        """Nothing is taken yet, and no tenant known."""
        self._room = room
        self._tenant_id: UUID | None = None
        self._held = 0

    def belong_to(self, tenant_id: UUID) -> None:
        """Say whose room it takes, before any is taken."""
        assert not self._held
        self._tenant_id = tenant_id

    def reach(self, byte_count: int) -> None:
        """Hold room for `byte_count` in all. Raises ApiError (429, 503)."""
        assert self._tenant_id is not None
        if byte_count > self._held:
            self._room.take(self._tenant_id, byte_count - self._held)
            self._held = byte_count

    def release(self) -> None:
        """Give all of it back; harmless when repeated."""
        if self._tenant_id is not None and self._held:
            self._room.give_back(self._tenant_id, self._held)
            self._held = 0
