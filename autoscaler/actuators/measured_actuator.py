"""Counts and times what an actuator does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from autoscaler.actuators.actuator import Actuator, ActuatorError, Observed, PoolOrder
from autoscaler.actuators.metrics import ACTUATOR_CALLS, ACTUATOR_SECONDS


class MeasuredActuator:
    """An actuator with metrics; each call is that of the actuator in it."""

    def __init__(self, actuator: Actuator, monotonic_s: Callable[[], float]) -> None:
        """`monotonic_s` returns seconds from any start."""
        self.actuator = actuator
        self.kind = actuator.kind
        self.chooses_removals = actuator.chooses_removals
        self._monotonic_s = monotonic_s

    async def apply(self, order: PoolOrder) -> None:
        """Carry out an order. Raises ActuatorError."""
        with self._measured("apply"):
            await self.actuator.apply(order)

    async def observe(self, pool: str) -> Observed:
        """Return what the platform is told to run. Raises ActuatorError."""
        with self._measured("observe"):
            return await self.actuator.observe(pool)

    async def close(self) -> None:
        """Release connections."""
        await self.actuator.close()

    @contextmanager
    def _measured(self, action: str) -> Iterator[None]:
        started_s = self._monotonic_s()
        code = "cancelled"
        try:
            yield
            code = "ok"
        except ActuatorError as error:
            code = error.code
            raise
        finally:
            ACTUATOR_CALLS.labels(self.actuator.kind, action, code).inc()
            seconds = max(0.0, self._monotonic_s() - started_s)
            ACTUATOR_SECONDS.labels(self.actuator.kind, action).observe(seconds)
