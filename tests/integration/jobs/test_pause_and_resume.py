"""Goal: a paused job has no valid records on the log; a resume emits exactly what did not run."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from jobs.errors import InvalidFieldError, JobNotFoundError
from jobs.expansion.cursors import ExpansionCursor, advance_cursor, fence_cursor
from jobs.store.controls import pause_job, resume_job
from jobs.tables.jobs import job_leases
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.object_store import ObjectBlocks, write_object
from tests.integration.jobs.resuming_process import COUNT, Intake
from tests.integration.jobs.rows import (
    add_tenant,
    database_now,
    execute,
    job_row,
)
from tests.integration.jobs.stores import Stores
from tests.integration.results.outcomes import outcome
from topics.records.records import JobControl


@pytest.fixture
def intake(stores: Stores, store_lines: Callable[[str, int], None]) -> Iterator[Intake]:
    store_lines("in", COUNT)
    intake = Intake(stores)
    yield intake
    intake.jobs.close()


def test_a_resume_re_emits_items_that_did_not_run(intake: Intake) -> None:
    intake.lease_jobs()
    intake.expand(200)
    intake.control(pause_job)
    intake.lease_jobs()
    assert intake.jobs.ids == frozenset()
    assert intake.loads() == []
    ran = [*range(10), 150]
    writer = ItemWriter(intake.engine, DayPartitions(intake.engine))
    writer.write({intake.job_id: [outcome(n) for n in ran]})
    intake.resumes.run_once()
    assert intake.valid_indexes() == []  # it is paused
    intake.control(resume_job)
    intake.lease_jobs()
    intake.resumes.run_once()
    intake.resumes.run_once()
    assert intake.valid_indexes() == sorted(set(range(200)) - set(ran))
    intake.lease_jobs()
    intake.expand(COUNT)
    assert intake.valid_indexes() == sorted(set(range(COUNT)) - set(ran))
    records = intake.controls()
    assert [(c.version, c.paused, c.void_below) for c in records] == [(1, True, 1), (2, False, 1)]


def test_a_job_that_cannot_resume_backs_off(
    intake: Intake, store_lines: Callable[[str, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    intake.lease_jobs()
    intake.expand(200)
    intake.control(pause_job)
    intake.lease_jobs()
    intake.control(resume_job)
    write_object(intake.objects, "in", b"not what was validated\n")
    reads: list[str] = []
    read = intake.objects.read

    def recorded(key: str) -> ObjectBlocks:
        reads.append(key)
        return read(key)

    monkeypatch.setattr(intake.objects, "read", recorded)

    tried = []
    for second in (0, 0.5, 1, 2, 3, 6, 7, 14, 15, 30, 31, 62, 63, 122, 123, 182, 183, 199):
        intake.resume_clock.now_s = second
        # The lease of a failed job expires by itself.
        execute(intake.engine, sa.update(job_leases).values(expires_at=sa.func.now()))
        intake.resumes.run_once()
        if reads:
            tried.append(second)
            reads.clear()
    assert tried == [0, 1, 3, 7, 15, 31, 63, 123, 183]
    assert intake.valid_indexes() == []

    store_lines("in", COUNT)
    intake.resumes.run_once()
    assert reads == []
    intake.resume_clock.now_s = 1000
    intake.resumes.run_once()
    assert intake.valid_indexes() == list(range(200))


@pytest.mark.parametrize(("resumes_first", "cursor"), [(False, 200), (True, 100)])
def test_a_round_overtaken_by_a_pause_loses_no_item(
    intake: Intake, resumes_first: bool, cursor: int
) -> None:
    """The cursor moves unless the resume has fenced it."""
    intake.lease_jobs()
    intake.expand(100)
    intake.control(pause_job, resume_job)
    if resumes_first:
        intake.resumes.run_once()
    intake.expand(100)  # with the state from before the pause
    (load,) = intake.loads()
    assert load.emitted == cursor
    intake.lease_jobs()
    intake.resumes.run_once()
    intake.expand(COUNT)
    assert intake.valid_indexes() == list(range(COUNT))


def test_no_further_item_is_emitted_before_the_void_ones(intake: Intake) -> None:
    """Otherwise the resume emits an item above the cursor again while it waits or runs."""
    intake.lease_jobs()
    intake.expand(100)
    intake.control(pause_job, resume_job)
    (load,) = intake.loads()
    assert (load.outstanding, load.remaining) == (100, 0)
    intake.resumes.run_once()
    (load,) = intake.loads()
    assert (load.outstanding, load.remaining) == (100, 200)


def test_a_job_that_was_resumed_after_its_load_was_read_is_known(intake: Intake) -> None:
    with intake.cache.current() as loads:
        intake.control(pause_job, resume_job)
        intake.jobs.acquire([intake.job_id], 1)
        assert intake.jobs.reload_changed(loads.by_id) == [intake.job_id]
    with intake.cache.current() as loads:
        assert intake.jobs.reload_changed(loads.by_id) == []


def test_records_below_the_fence_do_not_move_the_cursor(intake: Intake) -> None:
    intake.lease_jobs()
    lease = intake.leases.lease_of(intake.job_id)
    assert lease is not None
    start, end = ExpansionCursor(), ExpansionCursor(9, 9, 9)
    with intake.engine.begin() as connection:
        fence_cursor(connection, lease, 3)
        fence_cursor(connection, lease, 1)  # it only rises
        assert not advance_cursor(connection, lease, start, end, version=2)
        assert advance_cursor(connection, lease, start, end, version=3)


def test_repeated_changes_have_no_effect(intake: Intake) -> None:
    intake.control(pause_job, pause_job, resume_job, resume_job)
    for _ in range(2):
        intake.change(priority=9)
    assert [c.version for c in intake.controls()] == [1, 2, 3]


def test_a_control_record_has_the_full_state(intake: Intake) -> None:
    intake.control(pause_job)
    intake.change(completion_window="2h", priority=8)
    with intake.engine.begin() as connection:
        job = job_row(connection, intake.job_id)
    assert job.completion_window == "2h"
    assert (job.expires_at - job.created_at).total_seconds() == 7200
    deadline_s = job.expires_at.timestamp()
    assert intake.controls()[-1] == JobControl(
        intake.job_id, 2, paused=True, priority=8, deadline_s=deadline_s, void_below=1
    )


def test_only_a_late_extension_voids_earlier_records(intake: Intake) -> None:
    with intake.engine.begin() as connection:
        soon = int(database_now(connection).timestamp()) + 30
    intake.change(expires_at_s=soon)
    assert (intake.controls()[-1].void_below, intake.controls()[-1].deadline_s) == (0, soon)
    execute(intake.engine, "UPDATE jobs SET expires_at = now() + interval '5 s'")
    for window in ("1h", "2h"):
        intake.change(completion_window=window)
        assert intake.controls()[-1].void_below == 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": "1h", "expires_at_s": 1}, "completion_window"),
        ({"expires_at_s": 1}, "expires_at"),
        ({"expires_at_s": 2**62}, "expires_at"),
        ({"priority": 10}, "priority"),
    ],
)
def test_invalid_changes_are_rejected(intake: Intake, change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidFieldError) as refusal:
        intake.change(**change)
    assert refusal.value.param == param
    assert intake.controls() == []


def test_a_foreign_job_is_not_found(intake: Intake) -> None:
    with intake.engine.begin() as connection:
        intake.tenant_id = add_tenant(connection)
    with pytest.raises(JobNotFoundError):
        intake.control(pause_job)
