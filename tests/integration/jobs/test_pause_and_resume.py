"""Goal: a paused job has no valid records on the log; a resume emits exactly what did not run."""

from collections.abc import Callable, Iterator
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.errors import InvalidFieldError, JobNotFoundError, JobNotOpenError
from jobs.expansion.cursors import ExpansionCursor, advance_cursor, fence_cursor
from jobs.expansion.job_loads import job_loads
from jobs.recovery.re_emit import ReEmitter
from jobs.recovery.resume import ResumeSweep
from jobs.store.controls import JobChange, change_job, lock_open_job, pause_job, resume_job
from jobs.tables.jobs import job_cursors, job_leases, jobs
from jobs.tables.outbox import outbox
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.rows import add_running_job, add_tenant, database_now, job_row
from tests.integration.results.outcomes import outcome
from tests.support.clock import ManualClock
from topics.clients.producer import RecordProducer
from topics.records.codec import decode
from topics.records.records import JobControl
from topics.settings import KafkaSettings

COUNT = 300


class Intake(ExpansionProcess):
    """Expansion and resume of one intake process."""

    def __init__(
        self, engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer
    ) -> None:
        super().__init__(engine, objects, producer)
        emitter = ReEmitter(engine, objects, producer, self.leases)
        self.resume_clock = ManualClock()
        self.resumes = ResumeSweep(engine, emitter, self.resume_clock, window_items_max=20_000)


@pytest.fixture
def intake(
    engine: sa.Engine, objects: LocalObjectStore, producer: RecordProducer
) -> Iterator[Intake]:
    intake = Intake(engine, objects, producer)
    yield intake
    intake.jobs.close()


@pytest.fixture
def owned(engine: sa.Engine, store_lines: Callable[[str, int], None]) -> tuple[UUID, UUID]:
    """A tenant and its running job of 300 items."""
    store_lines("in", COUNT)
    with engine.begin() as connection:
        tenant_id = add_tenant(connection)
        return tenant_id, add_running_job(connection, tenant_id, COUNT)


def control(engine: sa.Engine, operation: Callable[..., object], *given: object) -> None:
    with engine.begin() as connection:
        operation(connection, *given)


def controls(engine: sa.Engine) -> list[JobControl]:
    """Return the control records in order."""
    query = sa.select(outbox).where(outbox.c.topic == "control").order_by(outbox.c.id)
    with engine.begin() as connection:
        rows = connection.execute(query).all()
    return [
        decode(JobControl, row.value, [(name, text.encode()) for name, text in row.headers])
        for row in rows
    ]


def valid_indexes(kafka: KafkaSettings, void_below: int) -> list[int]:
    """Return the indexes on the log that are not void, sorted, with repeats."""
    return sorted(
        item.index
        for chunks in chunks_by_partition(kafka).values()
        for chunk in chunks
        if chunk.job.version >= void_below
        for item in chunk.items
    )


def test_a_resume_re_emits_items_that_did_not_run(
    engine: sa.Engine, kafka: KafkaSettings, owned: tuple[UUID, UUID], intake: Intake
) -> None:
    _, job_id = owned
    intake.lease_jobs()
    intake.expander.run_once({job_id: 200})
    control(engine, pause_job, *owned)
    intake.lease_jobs()
    assert intake.jobs.ids == frozenset()
    with engine.begin() as connection:
        assert job_loads(connection) == []
    ran = [*range(10), 150]
    ItemWriter(engine, DayPartitions(engine)).write({job_id: [outcome(n) for n in ran]})
    intake.resumes.run_once()
    assert valid_indexes(kafka, 1) == []  # it is paused
    control(engine, resume_job, *owned)
    intake.lease_jobs()
    intake.resumes.run_once()
    intake.resumes.run_once()
    assert valid_indexes(kafka, 1) == sorted(set(range(200)) - set(ran))
    intake.lease_jobs()
    intake.expander.run_once({job_id: COUNT})
    assert valid_indexes(kafka, 1) == sorted(set(range(COUNT)) - set(ran))
    records = controls(engine)
    assert [(c.version, c.paused, c.void_below) for c in records] == [(1, True, 1), (2, False, 1)]


def test_a_job_that_cannot_resume_backs_off(
    engine: sa.Engine,
    kafka: KafkaSettings,
    owned: tuple[UUID, UUID],
    intake: Intake,
    objects: LocalObjectStore,
    store_lines: Callable[[str, int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    intake.lease_jobs()
    intake.expander.run_once({owned[1]: 200})
    control(engine, pause_job, *owned)
    intake.lease_jobs()
    control(engine, resume_job, *owned)
    with objects.begin_upload("in") as upload:
        upload.write(b"not what was validated\n")
        upload.complete()
    reads: list[str] = []
    read = objects.read

    def recorded(key: str) -> ObjectBlocks:
        reads.append(key)
        return read(key)

    monkeypatch.setattr(objects, "read", recorded)

    tried = []
    for second in (0, 0.5, 1, 2, 3, 6, 7, 14, 15, 30, 31, 62, 63, 122, 123, 182, 183, 199):
        intake.resume_clock.now_s = second
        with engine.begin() as connection:  # the lease of a failed job expires by itself
            connection.execute(sa.update(job_leases).values(expires_at=sa.func.now()))
        intake.resumes.run_once()
        if reads:
            tried.append(second)
            reads.clear()
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert valid_indexes(kafka, 1) == []

    store_lines("in", COUNT)
    intake.resumes.run_once()
    assert reads == []
    intake.resume_clock.now_s = 1000
    intake.resumes.run_once()
    assert valid_indexes(kafka, 1) == list(range(200))


@pytest.mark.parametrize(("resumes_first", "cursor"), [(False, 200), (True, 100)])
def test_a_round_overtaken_by_a_pause_loses_no_item(
    engine: sa.Engine,
    kafka: KafkaSettings,
    owned: tuple[UUID, UUID],
    intake: Intake,
    resumes_first: bool,
    cursor: int,
) -> None:
    """The cursor moves unless the resume has fenced it."""
    _, job_id = owned
    intake.lease_jobs()
    intake.expander.run_once({job_id: 100})
    control(engine, pause_job, *owned)
    control(engine, resume_job, *owned)
    if resumes_first:
        intake.resumes.run_once()
    intake.expander.run_once({job_id: 100})  # with the state from before the pause
    with engine.begin() as connection:
        assert connection.scalar(sa.select(job_cursors.c.item_index)) == cursor
    intake.lease_jobs()
    intake.resumes.run_once()
    intake.expander.run_once({job_id: COUNT})
    assert valid_indexes(kafka, 1) == list(range(COUNT))


def test_records_below_the_fence_do_not_move_the_cursor(
    engine: sa.Engine, owned: tuple[UUID, UUID], intake: Intake
) -> None:
    _, job_id = owned
    intake.lease_jobs()
    lease = intake.leases.lease_of(job_id)
    assert lease is not None
    with engine.begin() as connection:
        fence_cursor(connection, lease, 3)
        fence_cursor(connection, lease, 1)  # it only rises
    with engine.begin() as connection:
        assert not advance_cursor(
            connection, lease, ExpansionCursor(), ExpansionCursor(9, 9, 9), version=2
        )
        assert advance_cursor(
            connection, lease, ExpansionCursor(), ExpansionCursor(9, 9, 9), version=3
        )


def test_repeated_changes_have_no_effect(engine: sa.Engine, owned: tuple[UUID, UUID]) -> None:
    for operation in (pause_job, pause_job, resume_job, resume_job):
        control(engine, operation, *owned)
    change = JobChange(priority=9)
    for _ in range(2):
        control(engine, change_job, *owned, change)
    assert [c.version for c in controls(engine)] == [1, 2, 3]


def test_a_control_record_has_the_full_state(engine: sa.Engine, owned: tuple[UUID, UUID]) -> None:
    control(engine, pause_job, *owned)
    control(engine, change_job, *owned, JobChange(completion_window="2h", priority=8))
    with engine.begin() as connection:
        job = job_row(connection, owned[1])
    assert job.completion_window == "2h"
    assert (job.expires_at - job.created_at).total_seconds() == 7200
    assert controls(engine)[-1] == JobControl(
        owned[1], 2, paused=True, priority=8, deadline_s=job.expires_at.timestamp(), void_below=1
    )


def test_a_late_extension_voids_earlier_records(
    engine: sa.Engine, owned: tuple[UUID, UUID]
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(jobs).values(expires_at=sa.text("now() + interval '5 s'")))
    control(engine, change_job, *owned, JobChange(completion_window="1h"))
    assert controls(engine)[-1].void_below == 1
    control(engine, change_job, *owned, JobChange(completion_window="2h"))
    assert controls(engine)[-1].void_below == 1


def test_an_earlier_deadline_voids_nothing(engine: sa.Engine, owned: tuple[UUID, UUID]) -> None:
    with engine.begin() as connection:
        soon = int(database_now(connection).timestamp()) + 30
    control(engine, change_job, *owned, JobChange(expires_at_s=soon))
    assert (controls(engine)[-1].void_below, controls(engine)[-1].deadline_s) == (0, soon)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        (JobChange(completion_window="31d"), "completion_window"),
        (JobChange(completion_window="1h", expires_at_s=1), "completion_window"),
        (JobChange(expires_at_s=1), "expires_at"),
        (JobChange(expires_at_s=2**62), "expires_at"),
        (JobChange(priority=10), "priority"),
    ],
)
def test_invalid_changes_are_rejected(
    engine: sa.Engine, owned: tuple[UUID, UUID], change: JobChange, param: str
) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        control(engine, change_job, *owned, change)
    assert refusal.value.param == param
    assert controls(engine) == []


@pytest.mark.parametrize(
    "columns",
    [
        {"state": "cancelling"},
        {"close_reason": "expired"},
        {"settled_at": sa.func.now(), "state": "finalizing"},
        {"expires_at": sa.func.now()},
    ],
)
def test_a_closing_job_cannot_be_changed(
    engine: sa.Engine, owned: tuple[UUID, UUID], columns: dict[str, object]
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(jobs).values(**columns))
    for operation in (pause_job, resume_job):
        with pytest.raises(JobNotOpenError):
            control(engine, operation, *owned)


def test_a_foreign_job_is_not_found(engine: sa.Engine, owned: tuple[UUID, UUID]) -> None:
    with engine.begin() as connection:
        stranger = add_tenant(connection)
        with pytest.raises(JobNotFoundError):
            lock_open_job(connection, stranger, owned[1], "pause")
