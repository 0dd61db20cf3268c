"""A token bucket that fills within a minute; callers pass the time."""

from typing import Final

_MINUTE_S: Final = 60.0


class TokenBucket:
    """A full bucket, which fills within a minute. Costs known afterwards may overdraw it."""

    __slots__ = ("_at_s", "_level", "size")

    def __init__(self, size: int, *, now_s: float) -> None:
        self.size = size
        self._level = float(size)
        self._at_s = now_s

    def level(self, *, now_s: float) -> float:
        """Return the tokens in the bucket."""
        filled = self._level + (now_s - self._at_s) * self.size / _MINUTE_S
        self._level, self._at_s = min(float(self.size), filled), now_s
        return self._level

    def consume(self, amount: float, *, now_s: float) -> None:
        """Consume `amount`; a negative amount refunds."""
        self._level = min(float(self.size), self.level(now_s=now_s) - amount)

    def wait_s(self, amount: float, *, now_s: float) -> float:
        """Return the time until `amount` is available, or until the bucket is full."""
        missing = min(amount, float(self.size)) - self.level(now_s=now_s)
        return max(0.0, missing * _MINUTE_S / self.size)
