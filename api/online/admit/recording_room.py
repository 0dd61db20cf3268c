"""How many bytes of streams this process remembers at once, in all and of one tenant."""

from typing import Final

from api.online.memory_limits import MemoryLimit

_TENANTS_PART: Final = 2  # a half: one tenant alone leaves room for the others


class RecordingRoom(MemoryLimit):
    """Room for what streams with a key have sent so far: thousands may be open at once."""

    def __init__(self, bytes_max: int) -> None:
        """All of it is free."""
        super().__init__(bytes_max, of_tenant_max=bytes_max // _TENANTS_PART)
