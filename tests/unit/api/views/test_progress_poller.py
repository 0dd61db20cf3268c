"""Goal: all subscribers share one query, get each change, and leave nothing behind."""

import asyncio
from typing import Any, cast
from uuid import UUID

import pytest

from api.runtime.database import Database, DatabaseUnavailableError
from api.views.progress_poller import ProgressPoller, ProgressSnapshot
from api.views.view_services import ResultPageCache
from core.errors import MillraceError
from results.finaliser.output_lines import ItemRow
from results.views.sequenced_lines import SequencedRow
from tests.unit.results.views.stored import MemoryObjects, row, source

JOB, OTHER = UUID(int=1), UUID(int=2)


class Jobs:
    """Answers what a database would; each entry of `answers` is one look, the last one stays."""

    def __init__(self, *answers: dict[UUID, ProgressSnapshot] | type[Exception]) -> None:
        self.answers = list(answers)
        self.asked: list[list[UUID]] = []
        self.failures: list[MillraceError] = []
        self.failed = asyncio.Event()

    async def run_across_tenants(
        self, _work: object, job_ids: list[UUID]
    ) -> dict[UUID, ProgressSnapshot]:
        self.asked.append(job_ids)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, type):
            raise answer
        return {job_id: answer[job_id] for job_id in job_ids if job_id in answer}

    def progress_poller(self) -> ProgressPoller:
        return ProgressPoller(cast(Database, self), interval_s=0.001, on_failure=self._fail)

    def _fail(self, failure: MillraceError) -> None:
        self.failures.append(failure)
        self.failed.set()


START = ProgressSnapshot(0, is_terminal=False)


async def test_all_subscribers_share_one_query() -> None:
    jobs = Jobs({JOB: ProgressSnapshot(5, is_terminal=False), OTHER: START})
    progress_poller = jobs.progress_poller()
    with (
        progress_poller.subscribe(JOB, START) as one,
        progress_poller.subscribe(JOB, START) as two,
        progress_poller.subscribe(OTHER, START) as other,
    ):
        assert await one.wait_for_change(20)
        assert await two.wait_for_change(20)
        assert one.progress == two.progress == ProgressSnapshot(5, is_terminal=False)
        assert not await other.wait_for_change(0.05)
        assert not await one.wait_for_change(0.05)
        assert (progress_poller.count, progress_poller.subscriber_count(JOB)) == (3, 2)
    assert all(sorted(asked) == [JOB, OTHER] for asked in jobs.asked)
    assert progress_poller.count == 0


async def test_nothing_is_queried_without_subscribers() -> None:
    jobs = Jobs({JOB: ProgressSnapshot(1, is_terminal=False)})
    progress_poller = jobs.progress_poller()
    with progress_poller.subscribe(JOB, START) as subscription:
        assert await subscription.wait_for_change(20)
    async with asyncio.timeout(20):
        assert progress_poller._polling is not None
        await progress_poller._polling
    count = len(jobs.asked)
    await asyncio.sleep(0.02)
    assert len(jobs.asked) == count

    with progress_poller.subscribe(JOB, START) as again:
        assert await again.wait_for_change(20)


async def test_a_failed_query_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    jobs = Jobs(ValueError)
    with jobs.progress_poller().subscribe(JOB, START) as subscription:
        async with asyncio.timeout(20):
            await jobs.failed.wait()
        assert not await subscription.wait_for_change(0.05)

    (failure,) = jobs.failures
    assert str(failure) == "The task ProgressPoller._poll died: ValueError."
    told = [
        record.levelname
        for record in caplog.records
        if record.name == "core.runtime.supervised_tasks"
    ]
    assert told == ["CRITICAL"]


async def test_an_outage_delays_updates() -> None:
    jobs = Jobs(
        DatabaseUnavailableError,
        DatabaseUnavailableError,
        {JOB: ProgressSnapshot(1, is_terminal=True)},
    )
    with jobs.progress_poller().subscribe(JOB, START) as subscription:
        assert await subscription.wait_for_change(20)
        assert subscription.progress.is_terminal


class Rows:
    """A database with results."""

    def __init__(self, count: int, body_bytes: int = 10) -> None:
        self.count, self.reads = count, 0
        self.body = b"x" * body_bytes

    async def run_for_tenant(
        self, _tenant: UUID, _work: object, _job: object, **asked: Any
    ) -> list[SequencedRow]:
        self.reads += 1
        await asyncio.sleep(0)
        last = min(asked["after"] + asked["limit"], self.count)
        return [SequencedRow(n + 1, self.row(n)) for n in range(asked["after"], last)]

    def row(self, index: int) -> ItemRow:
        return row(index, body=self.body)


class Away:
    """A database that does not answer."""

    async def run_for_tenant(self, *_args: object, **_asked: object) -> None:
        raise DatabaseUnavailableError


async def test_streams_at_one_position_share_a_page() -> None:
    rows, at = Rows(300), source(MemoryObjects({"input": b""}))
    pages = ResultPageCache(cast(Database, rows))

    first = await asyncio.gather(*[pages.read_shared(at, 0) for _ in range(100)])
    again = await pages.read_shared(at, 0)

    assert rows.reads == 1
    assert all(page is again for page in first)
    assert [len(await pages.read_shared(at, after)) for after in (200, 299)] == [100, 1]
    assert await pages.read_shared(at, 300) == []  # nothing has come yet, so it is asked again
    rows.count = 301
    assert len(await pages.read_shared(at, 300)) == 1


async def test_pages_are_limited_and_evicted() -> None:
    rows, at = Rows(10_000, 10_000), source(MemoryObjects({"input": b""}))
    pages = ResultPageCache(cast(Database, rows))
    for after in range(0, 10_000, 200):
        await pages.read_shared(at, after)
        assert pages._bytes <= 16 * 1024 * 1024
    assert pages._bytes > 12 * 1024 * 1024

    pages.evict(at.job_id)
    assert (pages._bytes, pages._pages) == (0, {})


async def test_a_failed_page_is_read_again() -> None:
    pages = ResultPageCache(cast(Database, Away()))
    with pytest.raises(DatabaseUnavailableError):
        await pages.read_shared(source(MemoryObjects({"input": b""})), 0)
    assert pages._reading == {}
