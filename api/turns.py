"""Turns at what is heavy: few of a kind run at once, so that everybody else's requests go on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api import metrics
from api.answers import ApiError, unavailable


class Turns:
    """How many of one heavy kind of request run at once; more are refused, not queued."""

    def __init__(self, name: str, count: int) -> None:
        """`count` may run; `name` is what they are in the metrics."""
        self._name, self._free = name, count

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Take a turn until the block ends. Raises ApiError (503)."""
        if not self._free:
            raise busy(self._name)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


def busy(reason: str) -> ApiError:
    """Count and return the answer to one too many."""
    metrics.SHED.labels(reason).inc()
    return unavailable("Too many of these at once.", retry_after_s=5, code="slow_down")
