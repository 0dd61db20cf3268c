"""Goal: a connection-bound call is billed once, however often it is reported."""

from typing import Any
from uuid import UUID

import msgspec
import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.outcomes import Outcome
from results.tables import billed_calls
from results.writer.call_billing import CallBill, bills_of, write_bills
from results.writer.record_groups import is_bill
from tenancy.response_cache import NO_JOB
from tenancy.tables import usage_ledger
from tests.integration.results.outcomes import days_ago, execute, fetch, job_ref, outcome, scalars
from topics.records.records import CallRef, Outcomes

TENANT = UUID(int=7)


def report(request_id: UUID, *, tenant_id: UUID = TENANT, **fields: Any) -> list[CallBill]:
    job = msgspec.structs.replace(job_ref(request_id), tenant_id=tenant_id, call=CallRef("c", 0))
    assert is_bill(job)
    return bills_of(Outcomes(job, [outcome(0, body=b"", **fields)]))


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
    write_bills(
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
    write_bills(engine, [*first, *first])
    write_bills(engine, [*second, *first])
    write_bills(engine, [*second, *first])
    assert ledger(engine) == [(TENANT, 1, 3, 5, NO_JOB)] * 2


def test_refused_bill_is_dropped_alone(engine: sa.Engine) -> None:
    (good,) = report(new_uuid())
    bad = good._replace(request_id=new_uuid(), model="\0")
    write_bills(engine, [*report(new_uuid()), bad, good])
    assert sum(row[1] for row in ledger(engine)) == 2


@pytest.mark.parametrize(("days", "is_kept"), [(44, True), (60, False)])
def test_billed_calls_are_kept_for_the_retention_of_the_log(
    engine: sa.Engine, days: int, is_kept: bool
) -> None:
    old, newest = report(new_uuid()), report(new_uuid())
    write_bills(engine, old)
    execute(engine, sa.update(billed_calls).values(billed_at=days_ago(days)))
    write_bills(engine, newest)
    known = {bill.request_id for bill in [*old * is_kept, *newest]}
    assert {*scalars(engine, sa.select(billed_calls.c.request_id))} == known
    if is_kept:  # for quiet partitions
        write_bills(engine, old)
    assert len(ledger(engine)) == 2
