"""Goal: a connection-bound call is billed once, however often it is reported or restored."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.outcomes import Outcome
from results.rebuilding.database_restore import recover
from results.retention.day_removal import drop_old_bills
from results.tables import billed_calls
from results.writer.call_billing import BILL_CALLS, CallBill, bills_of, write_bills
from results.writer.day_partitions import DayPartitions, partition_name
from results.writer.record_groups import is_bill
from storage.postgres.engines import raw_cursor
from tenancy.audit_reading import read_entries
from tenancy.installation_log import INSTALLATION
from tenancy.response_cache import NO_JOB
from tenancy.tables import usage_ledger
from tests.integration.results.job_log import JobLog
from tests.integration.results.outcomes import (
    add_running_job,
    days_ago,
    execute,
    fetch,
    job_ref,
    outcome,
    scalars,
    today,
)
from tests.support.until import until
from topics.records.records import CallRef, Outcomes

TENANT = UUID(int=7)


def report(
    request_id: UUID, *, tenant_id: UUID = TENANT, day: int = 20_000, **fields: Any
) -> list[CallBill]:
    job = job_ref(request_id, day)
    job = msgspec.structs.replace(job, tenant_id=tenant_id, call=CallRef("c", 0))
    assert is_bill(job)
    return bills_of(Outcomes(job, [outcome(0, body=b"", **fields)]))


def bill(engine: sa.Engine, bills: list[CallBill]) -> None:
    """Bill calls in one transaction, in a process that knows no partition yet."""
    write_bills(engine, DayPartitions(engine, billed_calls), bills)


def ledger(engine: sa.Engine) -> list[tuple[Any, ...]]:
    names = ("tenant_id", "item_count", "input_tokens", "output_tokens", "job_id")
    query = sa.select(*[usage_ledger.c[name] for name in names]).order_by(usage_ledger.c.id)
    return [tuple(row) for row in fetch(engine, query)]


def test_only_connection_bound_calls_are_billed_without_rows() -> None:
    assert not is_bill(job_ref(new_uuid()))
    durable = CallRef("c", 0, False, True)
    assert not is_bill(msgspec.structs.replace(job_ref(new_uuid()), call=durable))


def test_transaction_adds_one_ledger_row_per_tenant_and_version(engine: sa.Engine) -> None:
    other = UUID(int=8)
    bill(
        engine,
        [
            *report(new_uuid()),
            *report(new_uuid(), outcome=Outcome.CANCELLED, input_tokens=4, output_tokens=1),
            *report(new_uuid(), tenant_id=other, status_code=400, input_tokens=0, output_tokens=0),
        ],
    )
    assert sorted(ledger(engine)) == [(TENANT, 2, 7, 6, NO_JOB), (other, 1, 0, 0, NO_JOB)]


def test_redelivered_bill_is_not_billed_again(engine: sa.Engine) -> None:
    first, second = report(new_uuid()), report(new_uuid())
    bill(engine, [*first, *first])
    bill(engine, [*second, *first])
    bill(engine, [*second, *first])
    assert ledger(engine) == [(TENANT, 1, 3, 5, NO_JOB)] * 2


def test_refused_bill_is_dropped_alone(engine: sa.Engine) -> None:
    (good,) = report(new_uuid())
    bad = good._replace(request_id=new_uuid(), model="\0")
    bill(engine, [*report(new_uuid()), bad, good])
    assert sum(row[1] for row in ledger(engine)) == 2


@pytest.mark.parametrize("day", [-1, 2**40])
def test_bill_of_an_impossible_day_is_billed_once(engine: sa.Engine, day: int) -> None:
    once = report(new_uuid(), day=day)
    bill(engine, once)
    bill(engine, once)
    assert ledger(engine) == [(TENANT, 1, 3, 5, NO_JOB)]


def test_report_delivered_again_after_midnight_is_not_billed_again(engine: sa.Engine) -> None:
    """Its record names the day of the call; reports of the next day have another partition."""
    evening = today(engine) + 20
    late, early = report(new_uuid(), day=evening), report(new_uuid(), day=evening + 1)
    bill(engine, late)
    execute(engine, sa.update(billed_calls).values(billed_at=days_ago(1)))
    bill(engine, [*early, *late])
    bill(engine, [*late, *early])
    assert ledger(engine) == [(TENANT, 1, 3, 5, NO_JOB)] * 2
    days = {partition_name(evening + i, "billed_calls") for i in range(2)}
    assert days <= parts_of(engine)


def parts_of(engine: sa.Engine) -> set[str]:
    query = "SELECT relid::text FROM pg_partition_tree('billed_calls') WHERE isleaf"
    return set(scalars(engine, sa.text(query)))


def test_days_that_the_log_has_forgotten_are_dropped_whole(engine: sa.Engine) -> None:
    """A day stays while a row of it is young: the clock of an api process may be wrong."""
    execute(engine, *without_the_days_before())
    now = today(engine)
    kept = {now: 0, now - 45: 45, now - 60: 44}
    old = [now - 46, now - 60 - 1]
    for day, age in [*kept.items(), *[(day, 46) for day in old]]:
        (one,) = report(new_uuid(), day=day)
        bill(engine, [one])
        of_one = sa.update(billed_calls).where(billed_calls.c.request_id == one.request_id)
        execute(engine, of_one.values(billed_at=days_ago(age)))
    written = ledger(engine)
    assert drop_old_bills(engine) == len(old)
    assert drop_old_bills(engine) == 0
    assert parts_of(engine) == {partition_name(day, "billed_calls") for day in kept}
    assert ledger(engine) == written


def without_the_days_before() -> list[sa.TextClause]:
    """Drop the partition that revision 0027 makes of the table before it."""
    return [
        sa.text(
            "DO $$ BEGIN EXECUTE (SELECT 'DROP TABLE ' || relid FROM "
            "pg_partition_tree('billed_calls') WHERE isleaf AND relid::text ~ 'before'); END $$"
        )
    ]


def test_days_before_the_first_partition_are_dropped_when_the_last_is_old(
    engine: sa.Engine,
) -> None:
    (before,) = parts_of(engine)
    assert drop_old_bills(engine) == 0
    end = partition_name(today(engine) - 45, "billed_calls_before")
    execute(engine, sa.text(f"ALTER TABLE {before} RENAME TO {end}"))
    bill(engine, report(new_uuid()))
    assert drop_old_bills(engine) == 0
    execute(engine, sa.update(billed_calls).values(billed_at=days_ago(46)))
    assert drop_old_bills(engine) == 1
    assert parts_of(engine) == set()


def test_writers_bill_while_days_are_dropped(engine: sa.Engine) -> None:
    """Also a call of a day that the writer knows and that was dropped: it is created again."""
    execute(engine, *without_the_days_before())
    now = today(engine)
    partitions = DayPartitions(engine, billed_calls)
    written = 0
    stop = threading.Event()

    def write() -> None:
        nonlocal written
        while not stop.is_set():
            write_bills(engine, partitions, report(new_uuid(), day=now))
            written += 1

    of_old_day = sa.update(billed_calls).where(billed_calls.c.request_day == now - 50)
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            for _ in range(3):
                write_bills(engine, partitions, report(new_uuid(), day=now - 50))
                execute(engine, of_old_day.values(billed_at=days_ago(47)))
                aim = written + 1
                assert drop_old_bills(engine) == 1
                until(lambda: written >= aim or writing.done())  # noqa: B023  at once
        finally:
            stop.set()
        writing.result(20)
    assert sum(row[1] for row in ledger(engine)) == written + 3


def test_billing_touches_the_partition_of_its_day_alone(engine: sa.Engine) -> None:
    """Its plan is the same with one partition and with sixty."""
    now = today(engine)
    columns = [list(column) for column in zip(*report(new_uuid(), day=now + 30), strict=True)]

    def plan() -> str:
        with engine.connect() as connection:
            cursor = raw_cursor(connection)
            cursor.execute(f"EXPLAIN (COSTS OFF) {BILL_CALLS}".encode(), [*columns, NO_JOB])
            return "\n".join(row[0] for row in cursor)

    few = plan()
    DayPartitions(engine, billed_calls).ensure(range(now + 10, now + 70))
    assert plan() == few
    assert "Scan on billed_calls" not in few
    assert "Insert on billed_calls" in few


HIT = "the model of an answer out of the cache"


def write_report(log: JobLog) -> UUID:
    call = new_uuid()
    job = msgspec.structs.replace(job_ref(call), call=CallRef("c", 0))
    log.write(call, Outcomes(job, [outcome(0, body=b"")]))
    return call


def billed(engine: sa.Engine) -> tuple[set[UUID], int]:
    """The billed calls, and how many the ledger has."""
    ours = sa.select(sa.func.sum(usage_ledger.c.item_count)).where(usage_ledger.c.model != HIT)
    return {*scalars(engine, sa.select(billed_calls.c.request_id))}, scalars(engine, ours)[0] or 0


def add_later_hit(engine: sa.Engine) -> None:
    """Add a cache hit to the ledger, dated long after all reports."""
    names = [column.name for column in usage_ledger.c]
    row: dict[str, object] = {name: 0 for name in names if name.endswith("_tokens")}
    row |= {"tenant_id": new_uuid(), "job_id": NO_JOB, "model": HIT, "model_version": "1"}
    row |= {"item_count": 1, "created_at": datetime.now(UTC) + timedelta(hours=3)}
    execute(engine, usage_ledger.insert().values(row))


def restore_before(engine: sa.Engine, call: UUID) -> None:
    """Restore the tables to before the last call was billed."""
    newest = sa.select(sa.func.max(usage_ledger.c.id)).scalar_subquery()
    execute(
        engine,
        sa.delete(billed_calls).where(billed_calls.c.request_id == call),
        sa.text("ALTER TABLE usage_ledger DISABLE TRIGGER append_only"),
        sa.delete(usage_ledger).where(usage_ledger.c.id == newest),
        sa.text("ALTER TABLE usage_ledger ENABLE TRIGGER append_only"),
    )


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("has_job", [True, False])
def test_bills_after_the_backup_are_restored(
    engine: sa.Engine, log: JobLog, *, known: bool, has_job: bool
) -> None:
    """With and without a bill and an unfinished job in the backup."""
    calls = [write_report(log) for _ in range(1 + known)]
    assert billed(engine) == ({*calls}, len(calls))
    restore_before(engine, calls[-1])
    add_later_hit(engine)
    assert billed(engine) == ({*calls[:-1]}, int(known))
    if has_job:  # newer than the reports, which are before its records on the log
        add_running_job(engine, 3, created_at=datetime.now(UTC) + timedelta(minutes=20))

    recovered = recover(engine, log.kafka)
    log.write(calls[0])

    assert (recovered.job_count, recovered.is_log_complete) == (int(has_job), True)
    with engine.connect() as connection:
        (entry,), _ = read_entries(connection, INSTALLATION, after=None, limit=2) or ([], False)
    assert (entry.action, entry.actor) == ("installation.recovered", "cli")
    assert entry.details["jobs"] == int(has_job)
    assert entry.details["records"] == recovered.record_count
    assert billed(engine) == ({*calls}, len(calls))
