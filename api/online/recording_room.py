"""How many bytes of streams this process remembers at once, in all and of one tenant."""

from collections import Counter
from typing import Final
from uuid import UUID

_TENANTS_PART: Final = 2  # a half: one tenant alone leaves room for the others


class RecordingRoom:
    """Room for what streams with a key have sent so far: thousands may be open at once."""

    def __init__(self, bytes_max: int) -> None:
        """All of it is free."""
        self._free = bytes_max
        self._tenant_bytes_max = bytes_max // _TENANTS_PART
        self._held: Counter[UUID] = Counter()

    def take(self, tenant_id: UUID, byte_count: int) -> bool:
        """Take room; False when there is not enough, or the tenant has its part."""
        held = self._held[tenant_id] + byte_count
        if byte_count > self._free or held > self._tenant_bytes_max:
            return False
        self._free -= byte_count
        self._held[tenant_id] = held
        return True

    def give_back(self, tenant_id: UUID, byte_count: int) -> None:
        """Return room that was taken."""
        self._free += byte_count
        self._held[tenant_id] -= byte_count
        if not self._held[tenant_id]:
            del self._held[tenant_id]
