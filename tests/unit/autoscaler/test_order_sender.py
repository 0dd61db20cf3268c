"""Goal: an actuator that errs costs its own pool time, and never the ownership of the others."""

import pytest

from autoscaler.actuators.actuator import (
    EPOCH_LEAP_MAX,
    ActuatorDeniedError,
    Observed,
    PoolOrder,
    StaleEpochError,
)
from tests.support.autoscaler_world import POOL, AutoscalerWorld, bulk_of
from tests.support.memory_actuator import MemoryActuator
from tests.support.scaling import NOW_S


class Lying(MemoryActuator):
    """Says of each order that its epoch is stale, and shows another one."""

    def __init__(self, shown: int | Exception) -> None:
        super().__init__()
        self.shown = shown

    async def apply(self, order: PoolOrder) -> None:
        self.calls += 1
        raise StaleEpochError

    async def observe(self, pool: str) -> Observed:
        if isinstance(self.shown, Exception):
            raise self.shown
        return Observed(kinds=(), epoch=self.shown)


def world_of(actuator: MemoryActuator) -> AutoscalerWorld:
    world = AutoscalerWorld(actuator=actuator)
    world.backlogs[POOL] = [bulk_of(1e6, NOW_S + 3_600)]
    return world


@pytest.mark.parametrize(
    "shown", [0, 1, 2 + EPOCH_LEAP_MAX, 2**62, ActuatorDeniedError(), ValueError("defect")]
)
async def test_a_stale_epoch_that_is_not_shown_is_a_failure_of_the_pool_alone(
    shown: int | Exception,
) -> None:
    world = world_of(Lying(shown))
    await world.advance(60)

    assert world.owner.refused == []
    assert world.loop.sender.failure(POOL) == "actuator_answer"
    assert world.actuator.calls <= 7  # after 1, 2, 4 … s


async def test_the_highest_epoch_that_is_believed_ends_the_ownership() -> None:
    world = world_of(Lying(1 + EPOCH_LEAP_MAX))
    await world.advance(6)
    assert world.owner.refused == [1 + EPOCH_LEAP_MAX]


async def test_a_new_epoch_keeps_the_wait_after_failures() -> None:
    world = world_of(MemoryActuator())
    world.actuator.failure = ActuatorDeniedError()
    await world.advance(42)
    calls = world.actuator.calls
    for epoch in range(2, 12):
        world.owner.epoch = epoch
        await world.advance(1)
    assert world.actuator.calls == calls
