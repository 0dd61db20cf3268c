"""Goal: what owners decide and the database's time says reaches every held chunk."""

import asyncio
import threading
from collections.abc import Callable
from uuid import UUID

import msgspec
import pytest
from sqlalchemy.exc import OperationalError

from batcher import database_clock
from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import AckTicket
from batcher.outbound.batch_sender import merge_chunks
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.drop_policy import DropPolicy
from batcher.queueing.queues import Queues
from core.states import CloseReason
from topics.records.records import CallRef, Item, JobControl, JobRef


class HeldClock:
    """A host whose wall clock is wrong by a year."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 3e7


class Controls:
    def __init__(self) -> None:
        self.known: dict[UUID, JobControl] = {}

    def newer(self, job: JobRef) -> JobControl | None:
        return self.known.get(job.job_id)


def job_ref(number: int = 1, **fields: object) -> JobRef:
    job = JobRef(
        job_id=UUID(int=number),
        day=1,
        tenant_id=UUID(int=77),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/embeddings",
        input_key="k",
        deadline_s=10_000.0,
        version=1,
    )
    return msgspec.structs.replace(job, **fields)


def chunk(job: JobRef, first: int = 0) -> BufferedChunk:
    items = [Item(first + n, f"c{n}", b"{}", 10) for n in range(10)]
    return BufferedChunk(job, items, AckTicket(("requests.bulk", 0), None, 10, 0.0))


async def clock_at(database_s: float) -> DatabaseClock:
    """A clock that has asked once."""
    clock = DatabaseClock(HeldClock(), lambda: database_s)
    following = asyncio.create_task(clock.run())
    await known(clock)
    following.cancel()
    return clock


async def known(clock: DatabaseClock) -> None:
    await until(lambda: clock.database_s() is not None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  a thread answers
            await asyncio.sleep(0.001)


async def test_the_wall_is_the_databases_and_not_the_hosts() -> None:
    clock = await clock_at(9_000.0)
    assert clock.wall_s() == clock.database_s() == 9_000.0


async def test_without_a_database_nothing_expires() -> None:
    clock = DatabaseClock(HeldClock(), None)
    await clock.run()
    assert clock.database_s() is None
    assert DropPolicy(Controls(), clock).drop_reason(job_ref(deadline_s=0.0), since_s=0.0) is None


async def test_a_database_that_is_away_leaves_what_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database_clock, "READ_INTERVAL_S", 0.0)
    inner, is_away, refused = HeldClock(), threading.Event(), 0
    answer_s = 100.0

    def ask() -> float:
        nonlocal refused
        if is_away.is_set():
            refused += 1
            raise OperationalError("away", {}, Exception())
        return answer_s

    clock = DatabaseClock(inner, ask)
    following = asyncio.create_task(clock.run())
    await known(clock)
    is_away.set()
    await until(lambda: refused > 1)
    inner.now_s += 7
    assert clock.database_s() == 107.0
    assert not following.done()

    answer_s = 90.0  # what it said before was late on its way
    is_away.clear()
    await until(lambda: clock.database_s() == 90.0)
    following.cancel()


async def test_why_a_chunk_must_not_be_sent() -> None:
    controls = Controls()
    controlled = DropPolicy(controls, await clock_at(9_999.0))
    job = job_ref()
    assert controlled.drop_reason(job, since_s=0.0) is None
    assert controlled.drop_reason(job_ref(deadline_s=9_999.0), since_s=0.0) == "expired"
    call = CallRef("caller", 0)
    assert controlled.drop_reason(job_ref(deadline_s=0.0, call=call), since_s=0.0) is None
    controls.known[job.job_id] = JobControl(job.job_id, 2, void_below=2)
    assert controlled.drop_reason(job, since_s=0.0) == "void"
    controls.known[job.job_id] = JobControl(job.job_id, 2, deadline_s=20_000.0)
    assert controlled.drop_reason(job_ref(deadline_s=9_000.0), since_s=0.0) is None
    controls.known[job.job_id] = JobControl(job.job_id, 2, closed=CloseReason.SPEND_CAP)
    assert controlled.drop_reason(job, since_s=0.0) == "closed"


async def test_a_tenants_urgent_job_goes_first_and_equals_share() -> None:
    controls = Controls()
    controlled = DropPolicy(controls, await clock_at(0.0))
    queues = Queues(items_max=10**6, bytes_max=10**9, rank=controlled.rank)
    first, second, urgent = job_ref(1), job_ref(2), job_ref(3, priority=9)
    for number in range(3):
        for job in (first, second, urgent):
            queues.add(chunk(job, 10 * number), now_s=0.0)
    (lane,) = queues.pools["p"].by_fairness()

    def taken() -> int:
        (held,) = queues.pop_batch(lane, item_count_max=10, token_count_max=10**9)
        return held.job.job_id.int

    assert [taken(), taken()] == [3, 3]
    controls.known[urgent.job_id] = JobControl(urgent.job_id, 2, priority=0)
    assert taken() == 3  # not known yet
    queues.add(chunk(urgent, 90), now_s=0.0)
    assert sorted([taken(), taken()]) == [1, 2]
    controls.known[second.job_id] = JobControl(second.job_id, 2, deadline_s=30.0)
    queues.update_ranks()
    assert [taken(), taken()] == [2, 2]
    assert [taken() for _ in range(3)] == [1, 1, 3]
    assert batch_key_of(first) not in queues.pools["p"].batch_keys


def test_chunks_of_other_files_or_versions_stay_apart() -> None:
    jobs = [job_ref(), job_ref(), job_ref(input_key="other"), job_ref(version=2)]
    parts = merge_chunks([chunk(job, 10 * n) for n, job in enumerate(jobs)], now_s=1.0)
    assert [(part.job, len(part.items)) for part in parts] == [
        (jobs[0], 20),
        (jobs[2], 10),
        (jobs[3], 10),
    ]
