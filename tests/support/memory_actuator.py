"""An actuator that keeps orders in memory and refuses what a test tells it to."""

import asyncio
from typing import ClassVar

from autoscaler.actuators.actuator import ActuatorError, Observed, PoolOrder, StaleEpochError


class MemoryActuator:
    """Keeps the accepted orders of all pools; refuses epochs lower than the highest of a pool."""

    kind: ClassVar[str] = "memory"
    chooses_removals: ClassVar[bool] = True

    def __init__(self) -> None:
        self.orders: list[PoolOrder] = []
        self.calls = 0
        self.failure: ActuatorError | None = None
        self.hanging_pools: set[str] = set()
        self.epochs: dict[str, int] = {}

    async def apply(self, order: PoolOrder) -> None:
        self.calls += 1
        if order.pool in self.hanging_pools:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure
        if order.epoch < self.epochs.get(order.pool, 0):
            raise StaleEpochError
        self.epochs[order.pool] = order.epoch
        self.orders.append(order)

    async def observe(self, pool: str) -> Observed:
        newest = self.newest(pool)
        kinds = () if newest is None else newest.kinds
        return Observed(kinds=kinds, epoch=self.epochs.get(pool, 0))

    async def close(self) -> None:
        """Nothing to release."""

    def newest(self, pool: str) -> PoolOrder | None:
        return next((one for one in reversed(self.orders) if one.pool == pool), None)
