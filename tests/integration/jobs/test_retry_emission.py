"""Goal: due retries are emitted once, within the budget of their pool, through crashes."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from core.errors import MillraceError
from jobs.recovery.retry_policy import RetryBudgetRules
from jobs.store.controls import pause_job, resume_job
from jobs.store.transaction_keepalive import wait_with_keepalive
from jobs.tables.jobs import jobs
from jobs.tables.retries import item_attempts, item_retries, retry_budgets
from storage.objects.errors import ObjectStoreRefusedError, ObjectStoreUnavailableError
from storage.objects.object_store import write_object
from tenancy.tables import tenants
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.retries import EXPECTED_OUTPUT, OFFSETS, RetryProcess
from tests.integration.jobs.rows import (
    add_item_row,
    add_tenant,
    database_away,
    execute,
    fail_reads,
    input_line,
    job_row,
)
from topics.clients.tracked_sends import TrackedSends


def test_due_retries_are_emitted_unchanged(retries: RetryProcess) -> None:
    job_id = retries.add_job()
    retries.schedule(job_id, 0, 7, 8, 299)
    retries.schedule(job_id, 9, due_s=60)
    retries.run()
    retries.run()
    found = retries.emitted()
    assert [(i.index, i.custom_id, i.attempt) for i in found] == [
        (index, f"id-{index}", 2) for index in (0, 7, 8, 299)
    ]
    assert found[1].body == b'{"model": "small", "input": "text 7"}'
    assert [i.offset for i in found] == [OFFSETS[i.index] for i in found]
    assert retries.waiting() == [(9, 2)]


@pytest.mark.parametrize("known_up_to", [-1, 3])
def test_a_retry_counts_the_output_that_results_let_expect(
    retries: RetryProcess, known_up_to: int
) -> None:
    job_id = retries.add_job(endpoint="/v1/chat/completions")
    retries.schedule(job_id, 3, 200)
    retries.forget_offsets(above=known_up_to)
    retries.run()
    assert [item.token_count for item in retries.emitted()] == [
        len(item.body) // 4 + EXPECTED_OUTPUT for item in retries.emitted()
    ]
    assert len(retries.emitted()) == 2


@pytest.mark.parametrize("known_up_to", [-1, 3])
def test_lines_of_unknown_offset_are_found_for_every_waiting_attempt(
    retries: RetryProcess, known_up_to: int
) -> None:
    job_id = retries.add_job()
    retries.schedule(job_id, 3, 200, 201)
    retries.schedule(job_id, 3, attempt=3)
    retries.forget_offsets(above=known_up_to)
    retries.run()
    assert [(i.index, i.custom_id, i.attempt) for i in retries.emitted()] == [
        *((3, "id-3", 2), (3, "id-3", 3)),
        *((200, "id-200", 2), (201, "id-201", 2)),
    ]
    assert retries.waiting() == []


@pytest.mark.parametrize("offset", [None, OFFSETS[201]])
def test_items_missing_from_their_file_are_logged_and_wait(
    retries: RetryProcess,
    store_lines: Callable[[str, int], None],
    caplog: pytest.LogCaptureFixture,
    offset: int | None,
) -> None:
    job_id = retries.add_job(input_key="cut")
    store_lines("cut", 150)
    retries.schedule(job_id, 3, 149, 201)
    lost = sa.update(item_retries).where(item_retries.c.item_index == 201)
    execute(retries.engine, lost.values(line_offset=offset))
    retries.run()
    assert retries.indexes() == [3, 149]
    assert retries.waiting() == [(201, 2)]
    assert [r.code for r in caplog.records if hasattr(r, "code")] == ["input_changed"]


@pytest.mark.parametrize("is_known", [True, False])
def test_an_unreadable_line_delays_no_other_line(
    retries: RetryProcess, caplog: pytest.LogCaptureFixture, is_known: bool
) -> None:
    lines = [*map(input_line, range(300))]
    lines[5] = b"x" * len(lines[5])
    write_object(retries.objects, "damaged", b"\n".join(lines))
    retries.schedule(retries.add_job(input_key="damaged"), *range(300))
    if not is_known:
        retries.forget_offsets()
    retries.run()
    assert retries.indexes() == [index for index in range(300) if index != 5]
    assert retries.waiting() == [(5, 2)]
    assert [r.facts for r in caplog.records if hasattr(r, "facts")] == [{"items": 1}]


def test_a_crash_before_the_commit_sends_the_same_attempt_again(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries.schedule(retries.add_job(), 5)
    with monkeypatch.context() as patched:
        patched.setattr("jobs.recovery.retry_emission.spend_budget", database_away)
        with pytest.raises(OperationalError):
            retries.run()
    assert retries.waiting() == [(5, 2)]
    retries.run()
    assert [(i.index, i.attempt) for i in retries.emitted()] == [(5, 2), (5, 2)]
    assert retries.waiting() == []


def test_a_later_attempt_keeps_its_row(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results writer schedules attempt 3 before the row of attempt 2 is deleted."""
    job_id = retries.add_job()
    retries.schedule(job_id, 5)
    spent: list[int] = []

    def schedule_next(*arguments: Any) -> None:
        retries.schedule(job_id, 5, due_s=60, attempt=3)
        spent.append(arguments[-1])

    monkeypatch.setattr("jobs.recovery.retry_emission.spend_budget", schedule_next)
    retries.run()
    assert spent == [1]
    assert retries.waiting() == [(5, 3)]


def test_a_pause_while_retries_are_sent_loses_no_retry(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, other = retries.add_job(), retries.add_job()
    retries.schedule(job_id, 5)
    retries.schedule(other, 6)
    changes: list[bool] = []

    def pause_and_resume(connection: sa.Connection, sends: TrackedSends) -> bool:
        changes.append(wait_with_keepalive(connection, sends))
        if len(changes) > 1:
            return True
        with retries.engine.begin() as connection:
            tenant_id = job_row(connection, job_id).tenant_id
            pause_job(connection, tenant_id, job_id)
        with retries.engine.begin() as connection:
            resume_job(connection, tenant_id, job_id)
        return True

    with monkeypatch.context() as patched:
        patched.setattr("jobs.recovery.retry_emission.wait_with_keepalive", pause_and_resume)
        retries.run()
    assert retries.waiting() == [(5, 2)]
    retries.run()
    assert retries.waiting() == []
    with retries.engine.connect() as connection:
        void_below = job_row(connection, job_id).void_below
    chunks = [c for found in chunks_by_partition(retries.kafka).values() for c in found]
    versions = [c.job.version for c in chunks if c.job.job_id == job_id]
    assert [version >= void_below for version in sorted(versions)] == [False, True]


def test_an_ended_item_is_not_retried(retries: RetryProcess) -> None:
    job_id = retries.add_job()
    with retries.engine.begin() as connection:
        add_item_row(connection, job_id, 4)
    retries.schedule(job_id, 4, 5)
    retries.run()
    assert retries.indexes() == [5]
    assert retries.waiting() == []


@pytest.mark.parametrize(
    "columns",
    [
        {"close_reason": "expired"},
        {"close_reason": "cancelled", "state": "cancelling"},
        {"settled_at": sa.func.now(), "state": "finalizing"},
    ],
)
def test_a_closed_job_gets_no_retries(retries: RetryProcess, columns: dict[str, Any]) -> None:
    retries.schedule(retries.add_job(**columns), 4, 5)
    retries.schedule(retries.add_job(), 6, due_s=60)
    retries.run()
    assert retries.indexes() == []
    assert retries.waiting() == [(6, 2)]


def test_retries_of_an_unavailable_pool_wait_alone(retries: RetryProcess) -> None:
    retries.schedule(retries.add_job(), 1)
    retries.schedule(retries.add_job(pool="other"), 2)
    retries.run("other")
    assert retries.indexes() == [2]
    retries.run()
    assert retries.indexes() == [1, 2]


def test_retries_of_a_job_wait_until_it_opens(retries: RetryProcess) -> None:
    later = retries.add_job(not_before=sa.text("now() + interval '1 hour'"))
    closed = retries.add_job(bulk_hours="00:00-12:00 UTC")
    execute(retries.engine, sa.update(tenants).values(bulk_hours="12:00-24:00 UTC"))
    execute(
        retries.engine,
        sa.update(tenants)
        .where(
            tenants.c.id == sa.select(jobs.c.tenant_id).where(jobs.c.id == later).scalar_subquery()
        )
        .values(bulk_hours=None),
    )
    retries.schedule(later, 1)
    retries.schedule(closed, 2)
    retries.run()
    assert (retries.indexes(), retries.waiting()) == ([], [(1, 2), (2, 2)])
    execute(retries.engine, sa.update(jobs).values(not_before=sa.func.now()))
    retries.run()
    assert retries.indexes() == [1]
    execute(retries.engine, sa.update(tenants).values(bulk_hours=None))
    execute(retries.engine, sa.update(jobs).values(bulk_hours=None))
    retries.run()
    assert retries.indexes() == [1, 2]


def test_a_spent_budget_delays_and_is_shared_by_jobs(retries: RetryProcess) -> None:
    rules = RetryBudgetRules(share=0.0, items_per_s_min=10.0, burst_s=1.0)
    second = retries.other()
    for process in (retries, second):
        process.set_rules(rules)
    flood, small = retries.add_job(), retries.add_job()
    retries.schedule(flood, *range(100))
    retries.schedule(small, 200, 201)
    frozen = sa.update(retry_budgets).values(filled_at=sa.func.now() + sa.text("interval '1 h'"))
    retries.run()
    execute(retries.engine, frozen)
    second.run()  # another process shares the budget
    assert retries.indexes() == [*range(8), 200, 201]
    later = sa.update(retry_budgets).values(
        tokens=0, filled_at=sa.func.now() - sa.text("interval '500 ms'")
    )
    execute(retries.engine, later)
    retries.run()
    assert 13 <= 2 + len([i for i in retries.indexes() if i < 100]) <= 20
    assert len(retries.waiting()) == 102 - len(retries.indexes())


def test_many_jobs_of_one_tenant_leave_others_their_share(retries: RetryProcess) -> None:
    """A round emits two retries; six older jobs must not get both each time."""
    rules = RetryBudgetRules(share=0.0, items_per_s_min=2.0, burst_s=1.0)
    retries.set_rules(rules, random.Random(1).random)
    with retries.engine.begin() as connection:
        crowd = add_tenant(connection)
    for _ in range(6):
        retries.schedule(retries.add_job(tenant_id=crowd), *range(100))
    other = retries.add_job()
    retries.schedule(other, *range(100, 110))
    refilled = sa.update(retry_budgets).values(tokens=2.0, filled_at=sa.func.now())
    for _ in range(4):
        retries.run()
        execute(retries.engine, refilled)
    assert len([index for index in retries.indexes() if index >= 100]) == 4
    assert len(retries.indexes()) == 8


def test_two_processes_send_each_retry_once(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    retries.schedule(retries.add_job(), *range(20))
    other = retries.other()
    has_run: list[bool] = []

    def run_other(*_: object) -> None:
        if not has_run:
            has_run.append(True)
            other.run()

    monkeypatch.setattr("jobs.recovery.retry_emission.spend_budget", run_other)
    retries.run()
    assert has_run
    assert retries.indexes() == list(range(20))


@pytest.mark.parametrize("failure", [ObjectStoreUnavailableError, ObjectStoreRefusedError])
def test_only_a_job_with_an_unreadable_file_backs_off(
    retries: RetryProcess, monkeypatch: pytest.MonkeyPatch, failure: type[MillraceError]
) -> None:
    retries.schedule(retries.add_job(input_key="gone"), 1)
    retries.schedule(retries.add_job(), 2)
    fail_reads(monkeypatch, retries.objects, "gone", failure)
    retries.run()
    assert retries.indexes() == [2]
    assert retries.waiting() == [(1, 2)]
    monkeypatch.undo()
    write_object(retries.objects, "gone", b"\n".join(map(input_line, range(300))))
    retries.run()
    assert retries.waiting() == [(1, 2)]
    retries.clock.now_s += 11
    retries.run()
    assert retries.indexes() == [1, 2]


def test_no_waiting_retry_creates_no_budget(retries: RetryProcess) -> None:
    retries.run()
    with retries.engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(retry_budgets)) == 0
        assert connection.scalar(sa.select(sa.func.count()).select_from(item_attempts)) == 0
