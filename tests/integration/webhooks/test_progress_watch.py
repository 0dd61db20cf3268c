"""Goal: progress and failed items of running jobs are announced once, at bounded cost."""

from typing import Any

import pytest
import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import JobState
from jobs.estimates.pool_rates import PoolRates
from jobs.store.days import job_day
from jobs.tables.jobs import job_counters, jobs
from results.webhooks.events.messages import ITEM_FAILED, PROGRESS
from results.webhooks.events.progress_estimates import (
    SLICE_S,
    CapacityReports,
    ProgressEstimates,
)
from results.webhooks.events.progress_watch import ProgressWatcher
from results.webhooks.tables import webhook_watches
from results.writer.day_partitions import DayPartitions
from storage.postgres.items import items
from tests.integration.results.outcomes import fetch
from tests.integration.results.outcomes import job as job_columns
from tests.integration.webhooks.conftest import Site
from tests.integration.webhooks.job_events import (
    add_endpoint,
    event_of,
    message_bodies,
    record,
    running_job,
)
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock


class Progressing:
    """A job whose counters and rows change like those of the results writer."""

    def __init__(self, site: Site, total: int, *, is_sealed: bool = True) -> None:
        self.site = site
        self.job_id = running_job(site, total, sealed=is_sealed, total_final=is_sealed)
        self._next = 0
        self._day = job_day(job_columns(site.engine, self.job_id)["created_at"])
        DayPartitions(site.engine).ensure([self._day])
        self.woken = 0
        self.watcher = ProgressWatcher(site.engine, 0.0, self._wake)

    def _wake(self) -> None:
        self.woken += 1

    def end(self, *, succeeded: int = 0, failed: int = 0, settled: bool = False) -> None:
        numbers = range(self._next, self._next + failed)
        self._next += failed
        names = ("status_code", "attempt", "input_tokens", "output_tokens", "cached_tokens")
        row = dict.fromkeys((*names, "reasoning_tokens"), 0)
        row |= {"job_day": self._day, "outcome": int(Outcome.FAILED)}
        counted = sa.update(job_counters).where(job_counters.c.job_id == self.job_id)
        self.site.execute(
            *[
                items.insert().values(
                    row | {"job_id": self.job_id, "item_index": n, "custom_id": f"id-{n}"}
                )
                for n in numbers
            ],
            counted.values(
                succeeded=job_counters.c.succeeded + succeeded,
                failed=job_counters.c.failed + failed,
            ),
        )
        if settled:
            ended = {"settled_at": sa.func.now(), "state": "finalizing"}
            self.site.execute(sa.update(jobs).where(jobs.c.id == self.job_id).values(ended))

    def message_bodies(self, event_type: str) -> list[dict[str, Any]]:
        return [m["data"]["millrace"] for m in message_bodies(self.site) if m["type"] == event_type]

    def watch(self) -> sa.Row[Any]:
        (row,) = fetch(self.site.engine, sa.select(webhook_watches))
        return row


def watched(site: Site, *event_types: str, total: int = 100) -> Progressing:
    """A job whose endpoint waits for such events since the job began."""
    add_endpoint(site, *event_types)
    job = Progressing(site, total)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    return job


def test_progress_says_when_the_job_ends_and_why_items_wait(site: Site) -> None:
    job = watched(site, PROGRESS)
    clock, rates = ManualClock(wall_time_s=1000.0), PoolRates()
    job.watcher.start_estimates = ProgressEstimates(rates, clock).start_slice
    pool = f"pool-{job.job_id.hex}"
    job.site.execute(sa.update(jobs).where(jobs.c.id == job.job_id).values(pool=pool))
    reports = CapacityReports(rates, clock)
    for _ in range(7):
        clock.advance(1.0)
        reports.receive([capacity_record(items_per_s=10.0, pool=pool)])
    job.end(succeeded=25)
    job.watcher.run_once()
    (body,) = job.message_bodies(PROGRESS)
    assert body["percent"] == 25
    assert 1005 <= body["eta"]["p50"] < body["eta"]["p90"] <= 1020  # 75 items at 10 in a second
    assert sum(body["waiting"].values()) == 75
    for _ in range(7):
        clock.advance(1.0)
        reports.receive([])
    job.end(succeeded=25)
    job.watcher.run_once()
    assert job.message_bodies(PROGRESS)[-1]["eta"]["reason"] == "no_replica"


@pytest.mark.parametrize(
    "statement", ["SELECT 1 / 0", "SELECT pg_sleep(60)", "SELECT missing FROM jobs"]
)
def test_progress_is_announced_without_an_estimate_that_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    def failing(connection: sa.Connection) -> None:
        connection.execute(sa.text(statement))

    monkeypatch.setattr("results.webhooks.events.progress_estimates.find_pool_sums", failing)
    job = watched(site, PROGRESS)
    site.execute(sa.update(jobs).where(jobs.c.id == job.job_id).values(pool="pool-small"))
    job.watcher.start_estimates = ProgressEstimates(PoolRates(), ManualClock()).start_slice
    job.end(succeeded=25)
    job.watcher.run_once()
    (body,) = job.message_bodies(PROGRESS)
    assert body["percent"] == 25
    assert not body.keys() & {"eta", "waiting"}


def test_estimates_of_a_slice_have_a_time_limit(site: Site) -> None:
    job = watched(site, PROGRESS)
    site.execute(sa.update(jobs).where(jobs.c.id == job.job_id).values(pool="pool-small"))
    clock = ManualClock()
    estimate = ProgressEstimates(PoolRates(), clock).start_slice()
    with site.engine.begin() as connection:
        limits = [connection.scalar(sa.text("SHOW statement_timeout"))]
        assert estimate(connection, job.job_id).keys() == {"eta", "waiting"}
        limits.append(connection.scalar(sa.text("SHOW statement_timeout")))
        clock.advance(SLICE_S)
        assert estimate(connection, job.job_id) == {}
    assert limits[0] == limits[1]  # that of the rest of the transaction is as before


def test_each_progress_mark_is_announced_once(site: Site) -> None:
    job = watched(site, PROGRESS)
    for count in (10, 15, 10, 45):
        job.end(succeeded=count)
        job.watcher.run_once()
        job.watcher.run_once()
    job.end(succeeded=20, settled=True)
    job.watcher.run_once()

    assert [m["percent"] for m in job.message_bodies(PROGRESS)] == [25, 50, 75]
    assert [m["succeeded"] for m in job.message_bodies(PROGRESS)] == [25, 80, 80]
    assert job.watch().closed_at is not None
    assert job.woken == 2


@pytest.mark.parametrize("is_new", [False, True])
def test_progress_is_announced_after_the_job_is_sealed(site: Site, *, is_new: bool) -> None:
    job = Progressing(site, 4, is_sealed=False)
    if is_new:  # its endpoint is created after all items have ended
        job.end(succeeded=4)
    add_endpoint(site, PROGRESS)
    record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    if not is_new:
        job.end(succeeded=4)
    job.watcher.run_once()
    assert job.message_bodies(PROGRESS) == []

    grown = {"sealed": True, "total_final": True, "total_count": 100}
    site.execute(sa.update(jobs).where(jobs.c.id == job.job_id).values(grown))
    for count in (20, 1):
        job.end(succeeded=count)
        job.watcher.run_once()

    assert [(m["percent"], m["total"]) for m in job.message_bodies(PROGRESS)] == [(25, 100)]


def test_running_jobs_are_polled_once_per_run(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("results.webhooks.events.progress_watch._JOBS_MAX", 2)
    add_endpoint(site, ITEM_FAILED)
    running = [Progressing(site, 1000) for _ in range(5)]
    for job in running:
        record(site, event_of(site, job.job_id, JobState.IN_PROGRESS))
    looks = 0

    def move() -> None:
        nonlocal looks
        looks += 1
        assert looks < 9
        for job in running:
            job.end(failed=1)

    move()
    ProgressWatcher(site.engine, 0.0, move, lambda: True).run_once()
    assert message_bodies(site) == []
    ProgressWatcher(site.engine, 0.0, move).run_once()

    assert looks == 4
    assert {m["data"]["id"] for m in message_bodies(site)} == {
        f"batch_{job.job_id.hex}" for job in running
    }
    assert len(message_bodies(site)) == 5


def test_job_without_subscriptions_is_not_watched(site: Site) -> None:
    job = watched(site, PROGRESS)
    before = job.watch()
    job.end(succeeded=20)
    job.watcher.run_once()

    assert job.watch() == before


def test_new_endpoint_receives_no_earlier_progress(site: Site) -> None:
    job = Progressing(site, 100)
    job.end(succeeded=50, failed=2)
    add_endpoint(site, PROGRESS, ITEM_FAILED)
    job.watcher.run_once()
    assert message_bodies(site) == []
    job.end(succeeded=22, failed=1)
    job.watcher.run_once()
    (progress,), (failed,) = job.message_bodies(PROGRESS), job.message_bodies(ITEM_FAILED)

    assert progress["percent"] == 75
    assert (failed["failed_count"], failed["failed_total"]) == (1, 3)
    assert [item["custom_id"] for item in failed["items"]] == ["id-2"]


def test_new_endpoint_does_not_reset_a_watch(site: Site) -> None:
    """The event of the job's start is not read yet."""
    add_endpoint(site, PROGRESS)
    job = Progressing(site, 100)
    job.end(succeeded=30)
    add_endpoint(site, PROGRESS)
    job.watcher.run_once()

    assert [m["percent"] for m in job.message_bodies(PROGRESS)] == [25]


def test_failed_items_are_announced_together(site: Site) -> None:
    job = watched(site, ITEM_FAILED, total=1000)
    job.end(succeeded=50)
    job.watcher.run_once()
    assert message_bodies(site) == []
    for count in (3, 250, 2):
        job.end(failed=count)
        job.watcher.run_once()
        job.watcher.run_once()
    first, second, third = job.message_bodies(ITEM_FAILED)

    assert [m["failed_count"] for m in (first, second, third)] == [3, 250, 2]
    assert [m["failed_total"] for m in (first, second, third)] == [3, 253, 255]
    assert [i["custom_id"] for i in first["items"]] == ["id-0", "id-1", "id-2"]
    assert [i["index"] for i in second["items"]] == list(range(3, 103))
    assert [i["index"] for i in third["items"]] == [253, 254]


def test_failed_items_are_announced_at_intervals(site: Site) -> None:
    job = watched(site, ITEM_FAILED, total=10)
    job.watcher.pause_s = 3600
    for _ in range(3):
        job.end(failed=1)
        job.watcher.run_once()
    job.end(failed=7, settled=True)
    job.watcher.run_once()
    assert [m["failed_count"] for m in job.message_bodies(ITEM_FAILED)] == [1]
    assert job.watch().closed_at is None
    job.watcher.pause_s = 0
    job.watcher.run_once()

    assert [m["failed_count"] for m in job.message_bodies(ITEM_FAILED)] == [1, 9]
    assert job.watch().closed_at is not None


def test_failed_items_of_an_unwatched_job_are_announced(site: Site) -> None:
    add_endpoint(site, ITEM_FAILED, "batch.completed")
    job = Progressing(site, 10)
    job.end(succeeded=8, failed=2, settled=True)
    record(site, event_of(site, job.job_id, JobState.COMPLETED))
    job.watcher.run_once()

    assert [m["failed_count"] for m in job.message_bodies(ITEM_FAILED)] == [2]


def test_watch_without_changes_is_not_written(site: Site) -> None:
    job = watched(site, PROGRESS)
    job.end(succeeded=1)
    job.watcher.run_once()
    version = sa.text("SELECT xmin::text FROM webhook_watches")
    before = site.scalars(version)
    job.watcher.run_once()
    assert site.scalars(version) == before
