"""Goal: with a real Postgres, records of the backlog tell the work of all rows at a second."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.expansion.backlog import REPEAT_S
from jobs.expansion.backlog_publisher import INTERVAL_S, BacklogPublisher
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.result_partitions import ResultPartitions
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_counters, jobs
from jobs.validation.validating_files import FirstPool
from registry.models import ModelVersion, add_model
from tests.integration.jobs.rows import (
    add_file,
    add_job,
    add_running_job,
    add_tenant,
    claim_lease,
    execute,
    job_row,
)
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from topics.records.codec import decode
from topics.records.scaling import Backlog

TOKENS = {"estimated_prompt_tokens": 6000, "estimated_output_tokens": 3000}
OTHER = ModelVersion(
    "other", "1", "pool-other", "simulated", ("/v1/embeddings",), datetime(2026, 1, 1, tzinfo=UTC)
)


class Site:
    """A publisher over a database, and what it sent."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine, self.clock, self.sent = engine, ManualClock(), SentRecords()
        cache = LoadCache(engine, ResultPartitions())
        self.publisher = BacklogPublisher(
            engine, cache, self.sent, self.clock, "intake-1", lambda: 0.5
        )
        with engine.begin() as connection:
            self.tenant_id = add_tenant(connection)

    def add(self, **columns: object) -> UUID:
        with self.engine.begin() as connection:
            return add_running_job(connection, self.tenant_id, 300, **(TOKENS | columns))

    def change(self, job_id: UUID, **columns: object) -> None:
        execute(self.engine, sa.update(jobs).where(jobs.c.id == job_id).values(**columns))

    def published(self) -> dict[str, Backlog]:
        """Publish once, and return the records by pool."""
        self.sent.records.clear()
        self.publisher.run_once()
        records = [decode(Backlog, one.value, one.headers) for one in self.sent.records]
        keys = [one.key for one in self.sent.records]
        assert keys == [f"intake-1:{record.pool}".encode() for record in records]
        assert {(one.topic, one.partition) for one in self.sent.records} <= {("backlog", 0)}
        return {record.pool: record for record in records}


@pytest.fixture
def site(engine: sa.Engine) -> Site:
    return Site(engine)


def items(record: Backlog) -> tuple[int, int]:
    """Return the items that may run, and those that may not."""
    return sum(b.items for b in record.buckets), sum(b.items for b in record.paused)


def test_records_follow_the_rows(site: Site) -> None:
    job_id = site.add()
    other = site.add(pool="pool-other", estimated_prompt_tokens=None, endpoint="/v1/completions")
    found = site.published()
    with site.engine.begin() as connection:
        row = job_row(connection, job_id)
    record = found["pool-small"]
    (bucket,) = record.buckets
    assert (bucket.items, bucket.prompt_tokens, bucket.output_tokens) == (300, 6000.0, 3000.0)
    assert bucket.endpoint == row.endpoint
    assert bucket.deadline_s == pytest.approx(row.expires_at.timestamp(), abs=0.001)
    assert record.next_deadline_s == bucket.deadline_s
    assert row.created_at.timestamp() <= record.at_s < row.expires_at.timestamp()
    assert found["pool-other"].buckets[0].output_tokens == 300 * 256

    ended = sa.update(job_counters).where(job_counters.c.job_id == job_id)
    execute(site.engine, ended.values(succeeded=90, failed=10))
    (bucket,) = site.published()["pool-small"].buckets
    assert (bucket.items, bucket.prompt_tokens, bucket.output_tokens) == (200, 4000.0, 2000.0)

    for blocked in ({"paused_at": sa.func.now()}, {"quarantined_until": sa.func.now()}):
        site.change(job_id, **blocked)
        record = site.published()["pool-small"]
        assert items(record) == (0, 200)
        assert record.next_deadline_s == 0
        site.change(job_id, paused_at=None, quarantined_until=None)
        assert items(site.published()["pool-small"]) == (200, 0)
    site.change(job_id, not_before=sa.text("now() + interval '1 hour'"))
    assert items(site.published()["pool-small"]) == (0, 200)
    site.change(other, close_reason="cancelled")
    assert site.published()["pool-other"].buckets == []


def test_a_pool_whose_work_ended_has_one_more_record_and_few_later(site: Site) -> None:
    job_id = site.add()
    assert items(site.published()["pool-small"]) == (300, 0)
    site.change(job_id, close_reason="expired")
    record = site.published()["pool-small"]
    assert (record.buckets, record.paused, record.next_deadline_s) == ([], [], 0.0)
    assert site.published() == {}
    site.clock.advance(REPEAT_S)
    assert site.published()["pool-small"].buckets == []


def test_files_without_a_verdict_count_where_their_pool_is_known(site: Site) -> None:
    waiting = {"input_bytes": 5000, "expires_at": sa.text("now() + interval '2 hours'")}
    with site.engine.begin() as connection:
        first = add_job(connection, site.tenant_id, **waiting)
        add_job(connection, site.tenant_id, **waiting)  # nobody has begun to read it
        running = add_running_job(connection, site.tenant_id, 300)
        for number in (1, 2):
            file_id = add_file(connection, site.tenant_id).id
            connection.execute(
                job_inputs.insert().values(
                    job_id=running, number=number, file_id=file_id, object_key="k", size_bytes=700
                )
            )
    find = FirstPool(site.engine, first, {"other": OTHER}.get).find
    assert find("unknown") is None
    assert set(site.published()) == {"pool-small"}
    assert find("other") is OTHER
    found = site.published()
    record = found["pool-other"]
    assert (record.validating, record.validating_bytes, record.buckets) == (1, 5000, [])
    assert record.next_deadline_s > record.at_s + 7000
    assert (found["pool-small"].validating, found["pool-small"].validating_bytes) == (1, 1400)

    for stopped in ({"paused_at": sa.func.now()}, {"quarantined_until": sa.func.now()}):
        for job_id in (first, running):
            site.change(job_id, **stopped)
        assert sum(one.validating for one in site.published().values()) == 0
        for job_id in (first, running):
            site.change(job_id, paused_at=None, quarantined_until=None)
        assert sum(one.validating for one in site.published().values()) == 2

    site.change(first, state="failed", failed_at=sa.func.now())
    assert site.published()["pool-other"].validating == 0
    find = FirstPool(site.engine, first, {"other": OTHER}.get).find
    assert find("other") is OTHER  # after the verdict nothing is recorded
    assert "pool-other" not in site.published()


def test_the_epoch_is_that_of_the_newest_lease(site: Site) -> None:
    site.add()
    assert site.published()["pool-small"].epoch == 0
    with site.engine.begin() as connection:
        lease = claim_lease(connection, "intake", jobs.c.state == "in_progress")
    assert site.published()["pool-small"].epoch == lease.epoch > 0


def test_while_the_log_is_away_no_record_waits_for_it(site: Site) -> None:
    site.add()
    site.sent.acknowledges = True
    site.sent.unavailable.add(("backlog", 0))
    site.sent.send("backlog", b"", partition=0, on_delivery=lambda _: None)
    assert site.published() == {}
    site.sent.restore()
    assert items(site.published()["pool-small"]) == (300, 0)


def test_publications_are_a_second_apart_and_never_take_most_of_the_time(site: Site) -> None:
    site.published()
    assert 0.9 * INTERVAL_S <= site.publisher.pause_s() < INTERVAL_S


def test_a_served_pool_is_told_without_work_and_not_twice_with_it(site: Site) -> None:
    given: dict[str, Any] = {"engine": "simulated", "endpoints": OTHER.endpoints}
    with site.engine.begin() as connection:
        add_model(connection, "other", "0", pool="pool-old", **given)
        add_model(connection, "other", "1", pool="pool-other", **given)
    found = site.published()
    assert set(found) == {"pool-other"}  # the old version gets no new jobs by the name
    assert (found["pool-other"].buckets, found["pool-other"].next_deadline_s) == ([], 0.0)
    assert found["pool-other"].at_s > 0
    assert site.published() == {}
    site.add(pool="pool-other")
    assert items(site.published()["pool-other"]) == (300, 0)
    site.clock.advance(REPEAT_S)
    assert items(site.published()["pool-other"]) == (300, 0)
