"""Goal: pauses, clock steps, stuck and leaving replicas lead to no wrong order."""

import msgspec

from autoscaler.actuators.actuator import ActuatorDeniedError
from tests.support.autoscaler_world import (
    L4,
    POOL,
    AutoscalerWorld,
    bulk_of,
    busy_world,
    capacity_of,
    demand_of,
    replicas,
)
from tests.support.memory_actuator import MemoryActuator
from tests.support.scaling import NOW_S


async def test_arrivals_of_the_time_before_an_epoch_are_not_those_of_its_first_second() -> None:
    world = AutoscalerWorld()
    world.owner.epoch = None
    for second in range(600):
        world.demands[POOL] = demand_of(arrived=500.0 * second, items=second)
        await world.advance(1)
    world.owner.epoch = 1
    for second in range(600, 605):
        world.demands[POOL] = demand_of(arrived=500.0 * second, items=second)
        await world.advance(1)
    assert world.state().target == 1


async def test_an_epoch_goes_on_with_its_sequence_after_a_pause() -> None:
    world = await busy_world()
    world.backlogs[POOL] = [bulk_of(9_000_000.0, NOW_S + 3_700)]
    await world.advance(2)
    before = world.actuator.orders[-1]
    world.owner.epoch = None
    await world.advance(2)
    world.owner.epoch = 1
    await world.advance(10)
    after = world.actuator.orders[-1]
    assert after.epoch == before.epoch
    assert after.sequence > before.sequence

    again = world.successor()
    again.owner.epoch = 1
    await again.advance(10)
    assert again.actuator.orders[-1].sequence > after.sequence


async def test_a_spot_notice_ends_the_replica_that_leaves_and_no_healthy_one() -> None:
    policies = L4.replace("cost_per_hour = 1.0", "cost_per_hour = 1.0\nspot_cost_per_hour = 0.1")
    world = AutoscalerWorld(policies + "spot_share = 0.5\nreplicas_min = 4\n")
    for number in range(4):
        world.start_replica(f"r{number}", spot=number < 2)
    world.backlogs[POOL] = []
    await world.advance(5)
    world.start_replica("r0", spot=True, leaves_at_s=NOW_S + 120)
    await world.advance(2)
    newest = world.actuator.newest(POOL)
    assert newest is not None
    assert newest.removals == ("r0",)
    assert newest.replicas == 4


async def test_a_replica_that_never_starts_is_ended_then_replaced_with_an_alert() -> None:
    world = AutoscalerWorld(L4 + "replicas_min = 1\n")
    world.backlogs[POOL] = []
    await world.advance(4)
    world.start_ordered(lifecycle="starting")
    (stuck,) = world.live
    await world.advance(620)
    newest = world.actuator.newest(POOL)
    assert newest is not None
    assert (newest.replicas, newest.removals) == (0, (stuck,))
    assert "did not become ready" in msgspec.json.decode(world.state().decision)["alert"]
    del world.live[stuck]
    await world.advance(12)
    assert replicas(world.actuator.newest(POOL)) == 1


async def test_the_state_tells_who_sleeps_and_what_failed() -> None:
    world = AutoscalerWorld(L4 + "warm_replicas = 1\n")
    world.live["old"] = capacity_of("old", lifecycle="asleep")
    world.actuator.failure = ActuatorDeniedError()
    world.backlogs[POOL] = []
    await world.advance(8)
    assert (world.state().asleep, world.state().failure) == (1, "actuator_denied")
    world.actuator.failure = None
    await world.advance(20)
    assert world.state().failure == ""


async def test_a_clock_that_goes_back_stops_neither_records_nor_arrivals() -> None:
    world = await busy_world()
    world.clock.wall_time_s = world.clock.now_s - 7_200
    written = len(world.sent.records)
    for second in range(12):
        world.clock.wall_time_s += 1
        world.demands[POOL] = demand_of(arrived=100.0 * second, items=second)
        await world.advance(1)
    assert len(world.sent.records) >= written + 3
    assert world.state().at_s <= world.clock.wall_s()
    memory = msgspec.json.decode(world.state().memory)
    assert memory["arrivals"]["at_s"] <= world.clock.wall_s()
    assert memory["history"]["at_s"] <= world.clock.wall_s()


async def test_a_pool_in_observation_takes_no_quota() -> None:
    policies = L4.replace("quota = 40", "quota = 2") + "[pools.watched]\nmode = 'observe'\n"
    world = AutoscalerWorld(policies)
    for pool in ("watched", POOL):
        world.backlogs[pool] = [bulk_of(36_000_000.0, NOW_S + 3_725)]
    await world.advance(6)
    assert replicas(world.actuator.newest(POOL)) == 2


async def test_an_actuator_that_was_opened_again_gets_the_order_again() -> None:
    world = await busy_world()
    orders = list(world.actuator.orders)
    world.actuator = MemoryActuator()
    await world.advance(3)
    assert replicas(world.actuator.newest(POOL)) == orders[-1].replicas
