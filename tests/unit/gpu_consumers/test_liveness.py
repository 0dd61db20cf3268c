"""Goal: no item of a closed or expired job starts, and none that is obsolete runs on."""

import asyncio
from collections.abc import Sequence
from typing import cast
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineDeadError
from gpu_consumers.cancellation import liveness
from gpu_consumers.cancellation.liveness import (
    ABORT_CHECK_S,
    LATE_S_MAX,
    BatchLiveness,
    ObsoleteBatchAborter,
)
from gpu_consumers.engines.engine import OnAnswer
from tests.support.clock import ManualClock
from tests.unit.gpu_consumers.fakes import FaultyEngine, run_loop
from tests.unit.gpu_consumers.replicas import BulkReplica, batch_of
from topics.records.records import Batch, JobControl
from topics.tail_readers.job_controls import JobControlReader

JOB = UUID(int=1)
OTHER = UUID(int=2)
NOW_S = 1_000_000.0


class SlowToStop(FaultyEngine):
    """An engine that stops an item only when a test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_stop = asyncio.Event()
        self.stopping = 0

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        self.stopping += 1
        try:
            await super().execute(endpoint, bodies, finished)
        finally:
            try:
                await self.may_stop.wait()
            finally:
                self.stopping -= 1


class TimedReplica(BulkReplica):
    """A replica whose clock stands still, at `NOW_S` by the database."""

    def __init__(self, engine: FaultyEngine | None = None) -> None:
        super().__init__(engine=engine)
        # The wall clock is wrong: it must not be used.
        self.clock = ManualClock(now_s=100.0, wall_time_s=1e12)
        self.time.add_sample(NOW_S, monotonic_s=100.0)
        controls = cast(JobControlReader, self.controls)
        self.control_changed = asyncio.Event()
        self.execution.liveness = BatchLiveness(controls, self.time, self.clock)
        self.aborter = ObsoleteBatchAborter(
            lambda: self.execution.runs, self.execution.liveness, self.control_changed
        )

    async def hold(self, batch: Batch, *, is_redelivered: bool = False) -> None:
        """Start a batch and return when its engine holds an item."""
        self.engine.gate.clear()
        self.start_batch(batch, is_redelivered=is_redelivered)
        async with asyncio.timeout(20):
            await self.engine.holds.wait()

    async def results(self) -> tuple[list[int], list[int], list[int]]:
        """Return the indexes of answered and of requeued items, and the finished offsets."""
        assert await self.wait_ended() is None
        answered = [outcome.index for outcome in self.log.outcomes]
        return answered, self.log.requeued_indexes, self.consumer.offsets


def with_deadline(batch: Batch, deadline_s: float) -> Batch:
    parts = [
        msgspec.structs.replace(part, job=msgspec.structs.replace(part.job, deadline_s=deadline_s))
        for part in batch.parts
    ]
    return msgspec.structs.replace(batch, parts=parts)


def two_jobs(deadline_s: float) -> Batch:
    """Return a batch of two jobs; the deadline of the second is in an hour."""
    first = with_deadline(batch_of(b"one", b"hold"), deadline_s)
    second = with_deadline(batch_of(b"hold", b"three", job_number=2), NOW_S + 3600)
    return msgspec.structs.replace(first, parts=first.parts + second.parts)


@pytest.mark.parametrize(
    ("deadline_s", "extended_s", "starts"),
    [(NOW_S + LATE_S_MAX / 2, None, False), (NOW_S + 1, None, True), (NOW_S - 1, NOW_S + 60, True)],
)
async def test_an_item_past_its_deadline_does_not_start(
    deadline_s: float, extended_s: float | None, starts: bool
) -> None:
    replica = TimedReplica()
    if extended_s is not None:
        replica.controls.by_job[JOB] = JobControl(JOB, 3, deadline_s=extended_s)
    replica.start_batch(with_deadline(batch_of(b"a"), deadline_s))
    assert await replica.results() == ([0] * starts, [], [0])
    assert len(replica.engine.executed) == starts
    assert replica.capacity.in_flight == 0


async def test_items_of_a_paused_job_do_not_start_and_running_ones_go_on() -> None:
    replica = TimedReplica()
    await replica.hold(with_deadline(batch_of(b"a", b"hold"), NOW_S + 60))
    replica.controls.by_job[JOB] = JobControl(JOB, 1, void_below=1, deadline_s=NOW_S + 60)
    replica.start_batch(with_deadline(batch_of(b"b"), NOW_S + 60), offset=1)
    replica.aborter.run_once()
    await asyncio.sleep(0)
    assert replica.engine.running == 1
    replica.engine.gate.set()
    assert await replica.results() == ([0, 1], [], [1, 0])


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_deadline_or_a_close_of_all_jobs_aborts_running_items_and_keeps_answers(
    is_closed: bool,
) -> None:
    replica = TimedReplica()
    batch = two_jobs(NOW_S + 1) if is_closed else with_deadline(batch_of(b"a", b"hold"), NOW_S + 1)
    await replica.hold(batch)
    assert 0 < replica.aborter.run_once() <= ABORT_CHECK_S
    if is_closed:
        replica.controls.closed_ids |= {JOB, OTHER}
    else:
        replica.clock.advance(1.0)
    replica.aborter.run_once()
    assert await replica.results() == ([0], [], [0])
    assert replica.engine.running == 0


async def test_a_close_aborts_running_items_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness, "ABORT_CHECK_S", 3600.0)
    replica = TimedReplica()
    await replica.hold(with_deadline(batch_of(b"a", b"hold", b"c"), NOW_S + 3600))
    checking = asyncio.create_task(replica.aborter.run())
    await asyncio.sleep(0)
    replica.controls.closed_ids.add(JOB)
    replica.control_changed.set()
    async with asyncio.timeout(20):
        assert await replica.results() == ([0], [], [0])
    checking.cancel()


async def test_a_batch_ends_after_its_engine_has_stopped_every_item() -> None:
    engine = SlowToStop()
    replica = TimedReplica(engine)
    await replica.hold(two_jobs(NOW_S + 1))
    replica.clock.advance(1.0)
    try:
        for abort in (
            replica.aborter.run_once,
            replica.aborter.run_once,
            replica.worker.requeue_all,
        ):
            abort()
            await run_loop(5)
            assert engine.stopping == 2
    finally:
        engine.may_stop.set()
    assert await replica.results() == ([0], [0, 1], [0])


@pytest.mark.parametrize("is_redelivered", [False, True])
async def test_other_jobs_of_the_batch_run_on(is_redelivered: bool) -> None:
    replica = TimedReplica()
    await replica.hold(two_jobs(NOW_S + 1), is_redelivered=is_redelivered)
    await asyncio.sleep(0)
    replica.clock.advance(1.0)
    replica.aborter.run_once()
    await run_loop(2)
    assert replica.engine.running == 1  # the item of the other job
    assert replica.capacity.in_flight == 2  # dropped items have released their credit
    replica.engine.gate.set()
    answered, requeued, offsets = await replica.results()
    assert ([*answered[:1], *sorted(answered[1:])], requeued, offsets) == ([0, 0, 1], [], [0])
    assert replica.capacity.in_flight == 0


async def test_a_crash_ends_the_other_jobs_of_the_batch() -> None:
    replica = TimedReplica()
    crashing = with_deadline(batch_of(b"crash", job_number=3), NOW_S + 3600).parts
    batch = two_jobs(NOW_S + 60)
    await replica.hold(msgspec.structs.replace(batch, parts=batch.parts + crashing))
    assert isinstance(await replica.wait_ended(), EngineDeadError)
    assert replica.engine.running == 0
    assert replica.consumer.offsets == []
