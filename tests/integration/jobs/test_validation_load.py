"""Goal: with a real Postgres, the load of intake is what it reads and what nobody reads yet."""

import sqlalchemy as sa

from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.byte_count import ByteCount
from jobs.validation.validation_load import ValidationLoadPublisher
from tests.integration.jobs.rows import (
    add_file,
    add_job,
    add_running_job,
    add_tenant,
    claim_lease,
)
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from topics.records.codec import decode
from topics.records.scaling import RoleLoad


class Site:
    """The publisher of one process, and what it sent."""

    def __init__(self, engine: sa.Engine) -> None:
        self.clock, self.sent, self.validated = ManualClock(), SentRecords(), ByteCount()
        self.publisher = ValidationLoadPublisher(
            engine, self.sent, self.clock, "intake-1", self.validated
        )

    def published(self, after_s: float = 1.0) -> RoleLoad:
        self.clock.advance(after_s)
        self.sent.records.clear()
        self.publisher.run_once()
        (one,) = self.sent.records
        assert (one.topic, one.partition, one.key) == ("backlog", 0, b"intake:intake-1")
        return decode(RoleLoad, one.value, one.headers)


def test_a_file_waits_until_its_validation_begins(engine: sa.Engine) -> None:
    site = Site(engine)
    assert site.published().waiting == 0
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        first = add_job(connection, tenant_id, input_bytes=5_000)
        add_job(connection, tenant_id, input_bytes=700, state="cancelling")
        add_running_job(connection, tenant_id, 3, input_bytes=9_999)
    assert site.published().waiting == 5_700

    with engine.begin() as connection:
        claim_lease(connection, "intake", jobs.c.id == first)
    assert site.published().waiting == 700


def test_an_appended_file_waits_whoever_expands_its_job(engine: sa.Engine) -> None:
    site = Site(engine)
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        job_id = add_running_job(connection, tenant_id, 3)
        claim_lease(connection, "intake", jobs.c.id == job_id)
        file = add_file(connection, tenant_id, size_bytes=1_400)
        row = {"job_id": job_id, "number": 2, "file_id": file.id, "object_key": file.object_key}
        connection.execute(job_inputs.insert().values(**row, size_bytes=1_400))
    assert site.published().waiting == 1_400

    with engine.begin() as connection:
        claim_lease(connection, "append", jobs.c.id == job_id)
    assert site.published().waiting == 0


def test_work_is_what_was_read_since_the_last_record(engine: sa.Engine) -> None:
    site = Site(engine)
    for _ in range(4):
        site.validated.add(1_000)
    found = site.published(after_s=2.0)
    assert (found.role, found.process_id, found.work_per_s) == ("intake", "intake-1", 2_000.0)
    assert 0 <= found.busy <= 1
    assert site.published().work_per_s == 0


def test_while_the_log_is_away_no_record_waits_for_it(engine: sa.Engine) -> None:
    site = Site(engine)
    site.sent.acknowledges = True
    site.sent.unavailable.add(("backlog", 0))
    site.sent.send("backlog", b"", partition=0, on_delivery=lambda _: None)
    site.sent.records.clear()
    site.clock.advance(1)
    site.publisher.run_once()
    assert site.sent.records == []
