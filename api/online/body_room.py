"""How many bytes of bodies this process holds at once, from their arrival to their record."""

from api.online.admission import queue_full


class BodyRoom:
    """Room for bodies: thousands of calls may arrive at once, each with megabytes."""

    def __init__(self, bytes_max: int) -> None:
        """All of it is free."""
        self._free = bytes_max

    def take(self, byte_count: int) -> bool:
        """Take room; False when there is not enough."""
        if byte_count > self._free:
            return False
        self._free -= byte_count
        return True

    def give_back(self, byte_count: int) -> None:
        """Return room that was taken."""
        self._free += byte_count


class BodyHold:
    """The room that one call's body takes."""

    __slots__ = ("_held", "_room")

    def __init__(self, room: BodyRoom) -> None:
        """Nothing is taken yet."""
        self._room = room
        self._held = 0

    def reach(self, byte_count: int) -> None:
        """Hold room for `byte_count` in all. Raises ApiError (503)."""
        more = byte_count - self._held
        if more > 0:
            if not self._room.take(more):
                raise queue_full(503, "Too many large calls arrive at once.", 1.0)
            self._held = byte_count

    def release(self) -> None:
        """Give all of it back; harmless when repeated."""
        self._room.give_back(self._held)
        self._held = 0
