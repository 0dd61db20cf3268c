"""Goal: job controls and the database's time decide which buffered chunks are dropped."""

import asyncio
import threading
from uuid import UUID

import msgspec
import pytest
from sqlalchemy.exc import OperationalError

from batcher import database_clock
from batcher.database_clock import DatabaseClock
from batcher.outbound.batch_sender import merge_chunks
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.drop_policy import DropPolicy
from batcher.queueing.queues import Queues
from core.states import CloseReason
from tests.support.clock import ManualClock
from tests.support.until import until_true
from tests.unit.batcher.builders import JobStates, buffered, job_ref
from topics.records.records import CallRef, JobControl, JobRef

JOB = job_ref(tenant_id=UUID(int=77), deadline_s=10_000.0, version=1)


def job(number: int = 1, **fields: object) -> JobRef:
    return msgspec.structs.replace(JOB, job_id=UUID(int=number), **fields)


def chunk(of_job: JobRef, first: int = 0) -> BufferedChunk:
    return buffered(of_job, range(first, first + 10))


async def clock_at(database_s: float) -> DatabaseClock:
    """Return a clock with one reading."""
    clock = DatabaseClock(ManualClock(50.0, wall_time_s=3e7), lambda: database_s)
    reading = asyncio.create_task(clock.run())
    await until_true(lambda: clock.database_s() is not None)
    reading.cancel()
    return clock


async def test_wall_time_is_the_databases() -> None:
    clock = await clock_at(9_000.0)
    assert clock.wall_s() == clock.database_s() == 9_000.0


async def test_nothing_expires_without_a_database() -> None:
    clock = DatabaseClock(ManualClock(50.0, wall_time_s=3e7), None)
    await clock.run()
    assert clock.database_s() is None
    assert DropPolicy(JobStates(), clock).drop_reason(job(deadline_s=0.0), since_s=0.0) is None


async def test_last_reading_covers_a_database_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database_clock, "READ_INTERVAL_S", 0.0)
    inner, is_unavailable, refused = ManualClock(50.0, wall_time_s=3e7), threading.Event(), 0
    answer_s = 100.0

    def read() -> float:
        nonlocal refused
        if is_unavailable.is_set():
            refused += 1
            raise OperationalError("away", {}, Exception())
        return answer_s

    clock = DatabaseClock(inner, read)
    reading = asyncio.create_task(clock.run())
    await until_true(lambda: clock.database_s() is not None)
    is_unavailable.set()
    await until_true(lambda: refused > 1)
    inner.now_s += 7
    assert clock.database_s() == 107.0
    assert not reading.done()

    answer_s = 90.0  # the earlier reading was delayed
    is_unavailable.clear()
    await until_true(lambda: clock.database_s() == 90.0)
    reading.cancel()


async def test_drop_reasons() -> None:
    controls = JobStates()
    policy = DropPolicy(controls, await clock_at(9_999.0))
    subject = job()
    assert policy.drop_reason(subject, since_s=0.0) is None
    assert policy.drop_reason(job(deadline_s=9_999.0), since_s=0.0) == "expired"
    call = CallRef("caller", 0)
    assert policy.drop_reason(job(deadline_s=0.0, call=call), since_s=0.0) is None
    controls.known[subject.job_id] = JobControl(subject.job_id, 2, void_below=2)
    assert policy.drop_reason(subject, since_s=0.0) == "void"
    controls.known[subject.job_id] = JobControl(subject.job_id, 2, deadline_s=20_000.0)
    assert policy.drop_reason(job(deadline_s=9_000.0), since_s=0.0) is None
    controls.known[subject.job_id] = JobControl(subject.job_id, 2, closed=CloseReason.SPEND_CAP)
    assert policy.drop_reason(subject, since_s=0.0) == "closed"


async def test_urgent_job_of_a_tenant_goes_first_and_equals_share() -> None:
    controls = JobStates()
    policy = DropPolicy(controls, await clock_at(0.0))
    queues = Queues(items_max=10**6, bytes_max=10**9, rank=policy.rank)
    first, second, urgent = job(1), job(2), job(3, priority=9)
    for number in range(3):
        for each in (first, second, urgent):
            queues.add(chunk(each, 10 * number), now_s=0.0)
    (queue,) = queues.pools["p"].by_fairness()

    def next_job() -> int:
        (popped,) = queues.pop_batch(queue, item_count_max=10, token_count_max=10**9)
        return popped.job.job_id.int

    assert [next_job(), next_job()] == [3, 3]
    controls.known[urgent.job_id] = JobControl(urgent.job_id, 2, priority=0)
    assert next_job() == 3  # not known yet
    queues.add(chunk(urgent, 90), now_s=0.0)
    assert sorted([next_job(), next_job()]) == [1, 2]
    controls.known[second.job_id] = JobControl(second.job_id, 2, deadline_s=30.0)
    queues.update_ranks()
    assert [next_job(), next_job()] == [2, 2]
    assert [next_job() for _ in range(3)] == [1, 1, 3]
    assert batch_key_of(first) not in queues.pools["p"].batch_keys


def test_chunks_of_other_files_or_versions_are_not_merged() -> None:
    jobs = [job(), job(), job(input_key="other"), job(version=2)]
    parts = merge_chunks([chunk(each, 10 * n) for n, each in enumerate(jobs)], now_s=1.0)
    assert [(part.job, len(part.items)) for part in parts] == [
        (jobs[0], 20),
        (jobs[2], 10),
        (jobs[3], 10),
    ]
