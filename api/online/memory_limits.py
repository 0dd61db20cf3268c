"""How many bytes of one kind this process holds at once, in all and of one tenant."""

from collections import Counter
from enum import Enum, auto
from uuid import UUID


class LimitExceeded(Enum):
    """Why there is no room."""

    OF_ROOM = auto()  # all of it is taken
    OF_SHARE = auto()  # what is free is for others


class MemoryLimit:
    """Room that tenants share; each holds `of_tenant_max` of it at most."""

    def __init__(self, bytes_max: int, *, of_tenant_max: int) -> None:
        """All of it is free."""
        self._free, self._of_tenant_max = bytes_max, of_tenant_max
        self._of_tenant: Counter[UUID] = Counter()

    @property
    def is_unused(self) -> bool:
        """Whether nothing is taken."""
        return not self._of_tenant

    def take(self, tenant_id: UUID, byte_count: int) -> LimitExceeded | None:
        """Take room, or return why nothing was taken."""
        if byte_count > self._free:
            return LimitExceeded.OF_ROOM
        if self._of_tenant[tenant_id] + byte_count > self._of_tenant_max:
            return LimitExceeded.OF_SHARE
        self.take_more(tenant_id, byte_count)
        return None

    def take_more(self, tenant_id: UUID, byte_count: int) -> None:
        """Take room beyond every bound; others have none until enough of it is back."""
        self._free -= byte_count
        self._of_tenant[tenant_id] += byte_count

    def give_back(self, tenant_id: UUID, byte_count: int) -> None:
        """Return room that was taken."""
        self._free += byte_count
        self._of_tenant[tenant_id] -= byte_count
        if not self._of_tenant[tenant_id]:
            del self._of_tenant[tenant_id]
