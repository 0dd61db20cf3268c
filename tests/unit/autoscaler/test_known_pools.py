"""Goal: a pool that is served has its warm pool before its work, and each change is recorded."""

import msgspec
import pytest

from autoscaler.loop.decision_loop import POOLS_MAX
from autoscaler.policies.policy_reader import read_policies
from tests.support.autoscaler_world import (
    L4,
    POOL,
    AutoscalerWorld,
    backlog_of,
    bulk_of,
    busy_world,
    capacity_of,
    demand_of,
)
from tests.support.scaling import NOW_S
from topics.records.scaling import DecisionEntry, PoolScaling


async def test_a_pool_that_a_pattern_names_has_its_warm_pool_before_its_first_work() -> None:
    world = AutoscalerWorld(L4 + '[pools."chat*"]\ngpu_types = ["l4"]\nwarm_replicas = 1\n')
    world.backlogs[POOL] = []  # intake tells of a pool that is served
    await world.advance(5)
    assert (world.state().target, world.state().standby) == (0, 1)
    newest = world.actuator.newest(POOL)
    assert newest is not None
    assert (newest.replicas, newest.standby) == (1, 1)


async def test_idle_pools_do_not_crowd_out_one_with_work_or_replicas() -> None:
    world = AutoscalerWorld(L4 + "warm_replicas = 0\n")
    world.silent.add("backlog")
    idle = [f"idle-{number:04}" for number in range(POOLS_MAX + 5)]
    world.store.record([backlog_of(pool) for pool in idle], NOW_S)
    work = bulk_of(1e6, NOW_S + 3_600)
    world.store.record([backlog_of("with-work", work), backlog_of("with-replicas")], NOW_S)
    world.start_replica("r", pool="with-replicas")
    await world.advance(4)

    assert world.state("with-work").target == 1
    assert world.state("with-replicas").target == 1
    assert len({one.pool for one in world.records(PoolScaling)}) == POOLS_MAX


async def test_bulk_work_is_not_stale_after_a_takeover_once_intake_told_of_its_end() -> None:
    world = await busy_world()
    after = world.successor()
    after.backlogs = {}
    await after.advance(20)
    assert "bulk" in msgspec.json.decode(after.state().decision)["need"]["stale"]
    after.store.record([backlog_of(POOL, at_s=after.clock.wall_s())], after.clock.wall_s())
    await after.advance(6)
    need = msgspec.json.decode(after.state().decision)["need"]
    assert (need["stale"], need["bulk"]) == ([], 0.0)


async def test_the_warm_pool_is_filled_woken_and_refilled() -> None:
    world = AutoscalerWorld(L4 + "warm_replicas = 1\n")
    world.live["old"] = capacity_of("old", lifecycle="asleep")
    world.backlogs[POOL] = []
    await world.advance(5)
    assert (world.state().target, world.state().standby) == (0, 1)
    assert world.actuator.orders[-1].standby == 1

    world.demands[POOL] = demand_of(waiting=10.0, arrived=10.0, items=1)
    await world.advance(1)
    assert world.state().awake == ["old"]
    newest = world.actuator.newest(POOL)
    assert newest is not None
    assert (newest.replicas, newest.standby) == (2, 1)

    world.start_replica("old")
    world.live["new"] = capacity_of("new", lifecycle="asleep")
    await world.advance(3)
    assert world.state().target == 1
    assert world.state().wake_s > 0
    assert world.actuator.newest(POOL) == newest  # nothing is ordered twice


@pytest.mark.parametrize("mode", ["active", "observe"])
async def test_each_change_of_the_warm_pool_is_in_the_history_once(mode: str) -> None:
    policies = L4 + f'mode = "{mode}"\nwarm_replicas = '
    world = AutoscalerWorld(policies + "2\n")
    if mode == "observe":
        world.live = {name: capacity_of(name, lifecycle="asleep") for name in "ab"}
    world.backlogs[POOL] = []
    await world.advance(20)
    if mode == "active":
        world.start_ordered(lifecycle="asleep")
    await world.advance(10)
    for warm_replicas in (3, 1):
        world.policies = read_policies(f"{policies}{warm_replicas}\n".encode(), "test.toml")
        await world.advance(5)
        if mode == "active":
            world.start_ordered(lifecycle="asleep")
        await world.advance(10)

    decisions = [msgspec.json.decode(one.decision) for one in world.records(DecisionEntry)]
    found = [(one["asleep"], one["standby"], one["standby_removals"]) for one in decisions]
    filled = [(0, 2, 0), (2, 3, 0), (3, 1, 2)]
    assert found == (filled if mode == "active" else [(2, 2, 0), (2, 3, 0), (2, 1, 1)])
    assert {(one["target"], one["reason"]) for one in decisions} == {(0, "need")}
