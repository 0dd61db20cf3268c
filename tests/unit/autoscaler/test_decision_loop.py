"""Goal: records in, orders out, also after a takeover, a fence, stale inputs, in each mode."""

import asyncio
import threading
import time
from typing import Any

import msgspec
import pytest

from autoscaler.actuators.actuator import ActuatorDeniedError, PoolOrder
from autoscaler.loop.decision_loop import EARLY_INTERVAL_S
from autoscaler.metrics import DROPPED
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
from topics.records.scaling import (
    Backlog,
    DecisionEntry,
    WakeRequest,
)


async def test_a_backlog_orders_the_replicas_that_it_needs_once() -> None:
    world = AutoscalerWorld()
    world.backlogs[POOL] = [bulk_of(7_200_000.0, NOW_S + 4_000)]
    await world.advance(30)

    assert [one.replicas for one in world.actuator.orders] == [2]
    assert world.state().target == 2
    assert world.state().waking_since_s > 0
    assert {one.sequence for one in world.actuator.orders} == {1}


async def test_nothing_is_decided_before_the_inputs_were_read_for_three_seconds() -> None:
    world = AutoscalerWorld()
    world.backlogs[POOL] = [bulk_of(1e6, NOW_S + 3_600)]
    await world.advance(3)
    assert world.actuator.orders == []
    await world.advance(1)
    assert len(world.actuator.orders) == 1


async def test_the_state_is_written_before_the_order_is_sent() -> None:
    world = AutoscalerWorld()
    written: list[int] = []

    class Watching(MemoryActuator):
        async def apply(self, order: PoolOrder) -> None:
            written.append(world.state().sequence)
            assert sum(one.replicas for one in world.state().kinds) == order.replicas
            await super().apply(order)

    world.actuator = Watching()
    world.backlogs[POOL] = [bulk_of(1e6, NOW_S + 3_600)]
    await world.advance(5)

    assert written == [1]


async def test_a_successor_goes_on_with_the_same_target_and_the_memory() -> None:
    world = await busy_world()
    before, ordered = world.state(), world.actuator.newest(POOL)
    memory = msgspec.json.decode(before.memory)
    assert memory["times"]["starts_s"]["l4"]

    after = world.successor()
    await after.advance(20)

    assert after.state().target == before.target == replicas(ordered)
    assert after.state().epoch == before.epoch + 1
    assert {one.replicas for one in after.actuator.orders} == {replicas(ordered)}
    restored = msgspec.json.decode(after.state().memory)
    assert restored["times"] == memory["times"]
    assert restored["history"]["last_work_s"] >= memory["history"]["last_work_s"]


async def test_a_successor_that_hears_no_replica_keeps_their_number_and_kinds() -> None:
    world = await busy_world()
    ordered = world.actuator.newest(POOL)
    assert ordered is not None
    after = world.successor()
    after.silent.add("capacity")
    await after.advance(25)

    assert {one.kinds for one in after.actuator.orders} <= {ordered.kinds}
    assert after.state().target == replicas(ordered)


@pytest.mark.parametrize("memory", [b"{", b'{"version":2}', b"\xff", b"[]"])
async def test_unreadable_memory_counts_as_a_first_history(memory: bytes) -> None:
    world = await busy_world()
    target = world.state().target
    after = world.successor()
    record = after.owner.log.pools[POOL]
    after.owner.log.pools[POOL] = msgspec.structs.replace(record, memory=memory)
    after.backlogs = {POOL: []}
    await after.advance(60)

    assert after.state().target == target  # nothing is reduced for 300 s


async def test_a_process_that_lost_the_ownership_orders_nothing() -> None:
    world = await busy_world()
    calls = world.actuator.calls
    written = len(world.sent.records)
    world.owner.epoch = None
    world.backlogs[POOL] = [bulk_of(40_000_000.0, NOW_S + 3_700)]
    await world.advance(10)

    assert world.actuator.calls == calls
    assert len(world.sent.records) == written


async def test_a_platform_that_saw_a_higher_epoch_ends_the_ownership() -> None:
    world = AutoscalerWorld()
    world.actuator.epochs[POOL] = 7
    world.backlogs[POOL] = [bulk_of(1e6, NOW_S + 3_600)]
    await world.advance(6)

    assert world.owner.refused == [7]
    assert world.actuator.orders == []


async def test_a_stale_input_never_lowers_and_still_raises() -> None:
    world = await busy_world()
    target = world.state().target
    world.silent.add("backlog")
    await world.advance(900)
    assert world.state().target == target
    assert "bulk" in msgspec.json.decode(world.state().decision)["need"]["stale"]

    world.demands[POOL] = demand_of(waiting=100_000.0)
    await world.advance(3)
    assert world.state().target > target


async def test_a_pool_without_work_goes_to_zero_and_wakes_for_an_upload_or_a_call() -> None:
    world = await busy_world()
    world.backlogs[POOL] = []
    for _ in range(120):
        await world.advance(10)
        world.start_ordered()
    assert world.state().target == 0
    assert replicas(world.actuator.newest(POOL)) == 0

    wake = WakeRequest(api_id="a", pool=POOL, at_s=world.clock.wall_s(), calls=1)
    world.store.record([wake], world.clock.wall_s())
    await world.advance(1)
    assert world.state().target == 1
    assert replicas(world.actuator.newest(POOL)) == 1


async def test_observe_decides_and_orders_nothing() -> None:
    world = AutoscalerWorld(L4 + 'mode = "observe"\n')
    world.backlogs[POOL] = [bulk_of(7_200_000.0, NOW_S + 4_000)]
    await world.advance(10)

    assert world.actuator.calls == 0
    assert world.state().mode == "observe"
    entries = world.records(DecisionEntry)
    assert [one.applied for one in entries] == [False]
    assert msgspec.json.decode(entries[0].decision)["target"] == 2


async def test_a_dry_run_decides_as_a_real_one() -> None:
    decisions = []
    for mode in ("observe", "active"):
        world = AutoscalerWorld(L4 + f'mode = "{mode}"\n')
        world.backlogs[POOL] = [bulk_of(7_200_000.0, NOW_S + 3_725)]
        await world.advance(4)
        decisions.append(world.records(DecisionEntry)[0].decision)

    assert decisions[0] == decisions[1]


async def test_pools_share_a_quota_by_their_need() -> None:
    policies = L4.replace("quota = 40", "quota = 6") + "replicas_max = 40\n"
    world = AutoscalerWorld(policies)
    for pool, tokens in (("poor", 36_000_000.0), ("rich", 7_200_000.0)):
        world.backlogs[pool] = [bulk_of(tokens, NOW_S + 3_725)]
    for _ in range(4):
        await world.advance(5)
        for pool in world.backlogs:
            if world.actuator.newest(pool):
                world.start_ordered(pool)

    counts = {pool: replicas(world.actuator.newest(pool)) for pool in world.backlogs}
    assert counts == {"poor": 5, "rich": 1}  # 11 and 2 are needed


async def test_a_failing_actuator_is_tried_again_less_and_less_and_is_recorded() -> None:
    world = AutoscalerWorld()
    world.actuator.failure = ActuatorDeniedError()
    world.backlogs[POOL] = [bulk_of(1e6, NOW_S + 90_000)]
    await world.advance(130)

    assert 6 <= world.actuator.calls <= 9  # after 1, 2, 4 … 60 s
    entry = world.records(DecisionEntry)[-1]
    assert entry.failure == "actuator_denied"
    assert "actuator_denied" in msgspec.json.decode(entry.decision)["alert"]

    world.actuator.failure = None
    await world.advance(61)
    assert replicas(world.actuator.newest(POOL)) == 1
    await world.advance(2)
    assert world.records(DecisionEntry)[-1].failure == ""


async def test_a_hanging_actuator_blocks_no_other_pool() -> None:
    world = AutoscalerWorld()
    world.actuator.hanging_pools.add("stuck")
    for pool in ("stuck", POOL):
        world.backlogs[pool] = [bulk_of(1e6, NOW_S + 90_000)]
    await world.advance(5)

    assert world.actuator.newest("stuck") is None
    assert replicas(world.actuator.newest(POOL)) == 1
    await world.loop.sender.drop_all()


async def test_a_lost_replica_is_replaced_by_the_same_kind() -> None:
    world = await busy_world()
    ordered = world.actuator.newest(POOL)
    world.live.popitem()
    await world.advance(40)

    assert world.actuator.newest(POOL) == ordered
    assert world.state().waking_since_s > 0


async def test_hostile_values_are_dropped_and_decisions_go_on() -> None:
    world = await busy_world()
    target = world.state().target
    nan, now_s = float("nan"), world.clock.wall_s()
    dropped = DROPPED.labels("backlog.at_s")._value.get()
    hostile: list[Any] = [
        capacity_of("r-nan", tokens_per_s=nan, load_tokens=-1.0, leaves_at_s=nan),
        Backlog(intake_id="x", pool=POOL, at_s=now_s + 1e6, epoch=1, buckets=[]),
        Backlog(intake_id="x", pool=POOL, at_s=nan, epoch=1, buckets=[]),
        Backlog(
            intake_id="x", pool=POOL, at_s=now_s + 2, epoch=1, buckets=[bulk_of(-5.0, nan)] * 200
        ),
        WakeRequest(api_id="x", pool=POOL, at_s=nan, uploads=5),
        WakeRequest(api_id="x", pool=POOL, at_s=now_s, calls=-3),
    ]
    world.demands[POOL] = demand_of(waiting=nan, arrived=-1.0)
    world.store.record(hostile, now_s)
    await world.advance(5)

    assert world.state().target == target
    assert world.clock.wall_s() - world.state().at_s <= 5
    assert DROPPED.labels("backlog.at_s")._value.get() == dropped + 2


async def test_64_pools_with_10000_replicas_are_decided_in_time() -> None:
    """The goal is 100 ms; the bound is ten times that, for a busy machine."""
    world = AutoscalerWorld(L4.replace("quota = 40", "quota = 20000") + "replicas_max = 1000\n")
    for pool in range(64):
        name = f"pool-{pool}"
        for number in range(157):
            replica_id = f"{name}-{number:03}"
            world.live[replica_id] = capacity_of(replica_id, pool=name)
        world.backlogs[name] = [bulk_of(400_000_000.0, NOW_S + 3_600)]
    await world.advance(5)
    world.clock.advance(1)
    world.publish()
    started_s = time.process_time()
    await world.loop.run_once()
    elapsed_s = time.process_time() - started_s

    assert len(world.live) > 10_000
    assert elapsed_s < 1.0


async def test_the_first_work_of_an_empty_pool_is_decided_before_the_interval_ends() -> None:
    ordered = asyncio.Event()

    class Telling(MemoryActuator):
        async def apply(self, order: PoolOrder) -> None:
            await super().apply(order)
            ordered.set()

    world = AutoscalerWorld(actuator=Telling())
    await world.advance(5)
    assert world.actuator.orders == []
    stop = threading.Event()
    running = asyncio.create_task(world.loop.run(stop, 3_600))
    await asyncio.sleep(0)  # the first round

    world.store.record([WakeRequest("a", POOL, world.clock.wall_s(), 0, 1)], world.clock.wall_s())
    world.loop.note_work(POOL)
    world.clock.advance(2 * EARLY_INTERVAL_S)
    async with asyncio.timeout(30):
        await ordered.wait()
    assert replicas(world.actuator.newest(POOL)) == 1
    stop.set()
    await running
