"""Goal: what an operator orders is carried out, also while the inputs of a pool are missing."""

import msgspec
import pytest

from tests.support.autoscaler_world import L4, POOL, busy_world, demand_of, replicas
from topics.records.scaling import ScalingOverride


async def test_an_operator_sets_the_replicas_within_the_bounds() -> None:
    world = await busy_world()
    world.owner.log.apply(ScalingOverride(pool=POOL, mode="set", replicas=99))
    await world.advance(2)
    assert replicas(world.actuator.newest(POOL)) == 10  # the maximum of the policy

    world.start_ordered()
    await world.advance(2)
    world.owner.log.apply(ScalingOverride(pool=POOL, mode="set", replicas=1))
    await world.advance(2)
    newest = world.actuator.newest(POOL)
    assert newest is not None
    assert newest.replicas == 1
    assert len(newest.removals) == 9


@pytest.mark.parametrize("ordered", [0, 1, 6])
@pytest.mark.parametrize("silent", ["capacity", "backlog", "demand"])
async def test_an_operator_sets_the_replicas_while_an_input_is_missing(
    silent: str, ordered: int
) -> None:
    world = await busy_world(tokens=14_000_000.0)
    assert world.state().target == 4
    world.silent.add(silent)
    await world.advance(30)
    world.owner.log.apply(ScalingOverride(pool=POOL, mode="set", replicas=ordered))
    await world.advance(2)
    assert replicas(world.actuator.newest(POOL)) == ordered

    world.silent.clear()
    await world.advance(2)
    assert replicas(world.actuator.newest(POOL)) == ordered
    assert world.state().target == ordered


@pytest.mark.parametrize(("ordered", "carried_out"), [(0, 1), (3, 3), (99, 10)])
async def test_an_operator_sets_the_replicas_while_inputs_are_absurd(
    ordered: int, carried_out: int
) -> None:
    world = await busy_world(L4 + "replicas_min = 1\n")
    for arrived in (1.0, 9e17):  # the variance is beyond all limits for an hour
        world.demands[POOL] = demand_of(arrived=arrived, items=2)
        await world.advance(1)
    target = world.state().target
    world.owner.log.apply(ScalingOverride(pool=POOL, mode="set", replicas=ordered))
    await world.advance(2)
    assert replicas(world.actuator.newest(POOL)) == world.state().target == carried_out != target
    assert msgspec.json.decode(world.state().decision)["needed"] > 0  # the last one that is known


async def test_a_paused_pool_keeps_its_replicas() -> None:
    world = await busy_world()
    orders = len(world.actuator.orders)
    override = ScalingOverride(pool=POOL, mode="paused", until_s=world.clock.wall_s() + 100)
    world.owner.log.apply(override)
    world.demands[POOL] = demand_of(waiting=1e6)
    await world.advance(50)
    assert len(world.actuator.orders) == orders
    assert world.state().mode == "paused"

    await world.advance(60)  # the override has ended
    assert len(world.actuator.orders) > orders
