"""Goal: capacity goes out once a second and after changes, grants apart and more often."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpu_consumers.flow_control import capacity_publisher
from gpu_consumers.flow_control.capacity_publisher import CapacityPublisher, ReplicaIdentity
from gpu_consumers.flow_control.capacity_schedule import (
    INTERVAL_S_MIN,
    RATE_FACTOR,
    REPEAT_S,
    CapacitySchedule,
    state_has_changed,
)
from gpu_consumers.flow_control.grant_changes import BUSY_REPEAT_S
from gpu_consumers.flow_control.in_flight_jobs import IN_FLIGHT_S_MIN
from tests.support.clock import ManualClock
from tests.unit.gpu_consumers.fakes import RecordingProducer, run_loop
from tests.unit.gpu_consumers.replicas import batch_of
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CAPACITY, GRANTS
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, Demand, OutputMean

STATE = Capacity("r", 1, "p", "bulk", [0], {"b": 5}, 10.0, 64)


@pytest.mark.parametrize(
    ("fields", "is_change"),
    [
        ({}, False),
        ({"granted": {"b": 99, "c": 1}}, False),
        ({"items_per_s": 10.0 * RATE_FACTOR}, False),
        ({"items_per_s": 10.0 * RATE_FACTOR + 0.1}, True),
        ({"items_per_s": 10.0 / RATE_FACTOR - 0.1}, True),
        ({"items_per_s": 0.0}, True),
        ({"available": False}, True),
        ({"in_danger": True}, True),
        ({"concurrency": 32}, True),
        ({"epoch": 2}, True),
        ({"partitions": [0, 1]}, True),
        ({"in_flight_jobs": []}, True),
        ({"output_means": [OutputMean("/v1/completions", None, 3.0)]}, True),
    ],
)
def test_readers_learn_of_changes_before_the_repetition(
    fields: dict[str, Any], *, is_change: bool
) -> None:
    assert state_has_changed(STATE, replace(STATE, **fields)) is is_change


steps = st.lists(st.tuples(st.floats(0, 0.3), st.booleans()), max_size=100)


@given(steps)
def test_records_keep_their_distance_and_no_change_waits_longer(
    steps: list[tuple[float, bool]],
) -> None:
    schedule, now_s, state, changed_s = CapacitySchedule(), 0.0, STATE, 0.0
    sent_s: list[float] = []
    for passes_s, changes in steps:
        now_s += passes_s
        if changes:
            state = replace(state, epoch=state.epoch + 1)
            changed_s = min(changed_s, now_s)
        if schedule.wait_s(now_s=now_s) > 0:
            continue
        if schedule.is_due(state, now_s=now_s):
            schedule.mark_published(state, now_s=now_s)
            sent_s.append(now_s)
            changed_s = float("inf")
        else:
            assert changed_s == float("inf")
            assert 0 < schedule.repeat_wait_s(now_s=now_s) <= REPEAT_S
    # The clock is a sum of floats, so a distance may be a rounding error shorter.
    pauses_s = [later - earlier for earlier, later in pairwise(sent_s)]
    assert all(pause_s > INTERVAL_S_MIN - 1e-9 for pause_s in pauses_s)


class Published:
    """A publisher whose clock a test moves, and what it sent."""

    def __init__(self) -> None:
        self.log, self.clock = RecordingProducer(), ManualClock(100.0)
        self.capacity = CapacityPublisher(
            ReplicaIdentity(replica_id="r", pool="p", job_class="bulk", batch_items=100),
            cast(RecordProducer, self.log),
            lambda: 64,
            self.clock,
        )

    def counts(self) -> tuple[int, int]:
        """Return how many records of grants and of capacity were sent."""
        return len(self.log.grants), len(self.log.capacities)

    def add_demand(self) -> None:
        """Let batcher `b` say that a hundred items wait."""
        demand, headers = Demand("b", "bulk", {"p": 100}), kind_headers(Demand)
        record = ReceivedRecord("demand", 0, 0, b"b", headers, encode(demand), 0)
        self.capacity.apply_demand([record])


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch, *, spins: bool) -> AsyncIterator[Published]:
    """Run a publisher with partitions; if it spins, its timers do not wait for real time."""
    for name in ("REPEAT_S", "IDLE_REPEAT_S"):
        monkeypatch.setattr(capacity_publisher, name, 0.0 if spins else 60.0)
    published = Published()
    publishing = asyncio.create_task(published.capacity.run())
    await run_loop()
    published.capacity.start_epoch([("batches.p.bulk", 3)])
    await run_loop()
    yield published
    publishing.cancel()


async def test_ended_items_publish_grants_and_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, spins=False) as published:
        published.add_demand()
        await run_loop()
        grants, capacities = published.counts()
        batch = replace(batch_of(b"a"), batcher_id="b", replica_id="r")
        batch = replace(batch, epoch=published.log.grants[-1].epoch)
        published.clock.advance(INTERVAL_S_MIN)
        published.capacity.record_arrival(batch, 64)
        published.capacity.record_end(batch, 64)
        await run_loop()
        assert published.counts() == (grants + 1, capacities)
    first, last = published.log.grants[-2:]
    assert last.granted["b"] == first.granted["b"] + 64
    assert (last.partitions, last.concurrency, last.available) == ([3], 64, True)


async def test_changes_are_published_together_within_50_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, spins=True) as published:
        published.clock.advance(REPEAT_S)
        await run_loop()
        _, count = published.counts()
        for number in range(5):
            published.capacity.start_epoch([("batches.p.bulk", number)])
            published.clock.advance(0.009)
            await run_loop()
        assert published.counts()[1] == count
        assert published.log.grants[-1].partitions == [4]
        published.clock.advance(0.006)
        await run_loop()
        assert published.counts()[1] == count + 1
        assert published.log.capacities[-1].partitions == [4]


async def test_capacity_is_repeated_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, spins=True) as published:
        published.clock.advance(REPEAT_S)
        await run_loop()
        _, count = published.counts()
        for _ in range(8):
            published.clock.advance(0.25)
            await run_loop()
        assert published.counts()[1] == count + 2
        assert published.counts()[0] >= 8


async def test_a_busy_replica_repeats_grants_that_change_little_every_0_6_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch, spins=True) as published:
        published.add_demand()
        await run_loop()
        batch = replace(batch_of(b"a"), batcher_id="b", replica_id="r")
        batch = replace(batch, epoch=published.log.grants[-1].epoch)
        published.capacity.record_arrival(batch, 100)
        published.clock.advance(BUSY_REPEAT_S)
        sent_s = []
        for number in range(16):
            published.add_demand()  # or the grant would be void
            count = len(published.log.grants)
            await run_loop()
            sent_s += [number / 10] * (len(published.log.grants) - count)
            published.capacity.record_end(batch, 1)
            published.clock.advance(0.1)
    assert sent_s == [0.0, 0.6, 1.2]


async def test_nothing_is_lost_while_a_partition_has_no_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch, spins=True) as published:
        published.capacity.record_arrival(batch_of(b"a"), 1)
        published.clock.advance(IN_FLIGHT_S_MIN)
        published.log.without_space = {CAPACITY.name, GRANTS.name}
        await run_loop()
        before = published.counts()
        published.capacity.limit_items(0)
        published.clock.advance(REPEAT_S)
        await run_loop()
        assert published.counts() == before
        published.log.without_space = set()
        published.clock.advance(INTERVAL_S_MIN)
        await asyncio.sleep(INTERVAL_S_MIN)
        await run_loop()
        grants, capacities = published.counts()
        assert (grants > before[0], capacities > before[1]) == (True, True)
    assert not published.log.grants[-1].available
    assert not published.log.capacities[-1].available
    assert [c.in_flight_jobs for c in published.log.capacities[before[1] :]] == [[UUID(int=1)]]


async def test_a_replica_that_stops_withdraws_its_credit_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running(monkeypatch, spins=False) as published:
        published.capacity.publish_withdrawal()
    assert not published.log.grants[-1].available
    assert not published.log.capacities[-1].available
