"""How many bytes of bodies this process holds at once, from their arrival to their record."""

from typing import Final
from uuid import UUID

from api.online.admit.admission import queue_full
from api.online.memory_limits import LimitExceeded, MemoryLimit
from api.runtime.tenant_slots import tenant_share

_REFUSALS: Final = {
    LimitExceeded.OF_ROOM: (503, "Too many large calls arrive at once."),
    LimitExceeded.OF_SHARE: (429, "Too many large calls of your organization arrive at once."),
}


class BodyRoom(MemoryLimit):
    """Room for bodies: thousands of calls may arrive at once, each with megabytes."""

    def __init__(self, bytes_max: int, *, body_bytes_max: int) -> None:
        """All of it is free. A tenant has half of it, and no less than one body may take."""
        super().__init__(bytes_max, of_tenant_max=max(tenant_share(bytes_max), body_bytes_max))


class BodyHold:
    """The room that one call's body takes."""

    __slots__ = ("_held", "_room", "_tenant_id")

    def __init__(self, room: BodyRoom) -> None:
        """Nothing is taken yet, and no tenant known."""
        self._room = room
        self._tenant_id: UUID | None = None
        self._held = 0

    @property
    def tenant_id(self) -> UUID | None:
        """Whose room it takes; None until that is known."""
        return self._tenant_id

    def belong_to(self, tenant_id: UUID) -> None:
        """Say whose room it takes, before any is taken."""
        assert not self._held
        self._tenant_id = tenant_id

    def reach(self, byte_count: int) -> None:
        """Hold room for `byte_count` in all.

        Raises ApiError: 503 when there is not enough, 429 when what there is is for others.
        """
        assert self._tenant_id is not None
        if byte_count > self._held:
            lack = self._room.take(self._tenant_id, byte_count - self._held)
            if lack is not None:
                raise queue_full(*_REFUSALS[lack], 1.0)
            self._held = byte_count

    def release(self) -> None:
        """Give all of it back; harmless when repeated."""
        if self._tenant_id is not None and self._held:
            self._room.give_back(self._tenant_id, self._held)
            self._held = 0
