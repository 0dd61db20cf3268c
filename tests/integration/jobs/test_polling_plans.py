"""Goal: queries that run periodically use indexes."""

from uuid import UUID

import pytest
import sqlalchemy as sa

from core.states import JobKind
from jobs.expansion.job_loads import EXPANSION_DUE, OPEN, loads_query, requests_query
from jobs.leasing.leases import claimable
from jobs.outbox_relay import CLAIM_MAX, claim_query
from jobs.recovery.expiry import expiry_due_query
from jobs.recovery.re_emit import MISSING_INDEXES
from jobs.recovery.resume import resume_query
from jobs.tables.jobs import jobs

DAY = 20_000
BOUNDS = f"FOR VALUES FROM ({DAY}) TO ({DAY + 1})"
MISSING = sa.text(MISSING_INDEXES.text).bindparams(
    sa.bindparam("job_id", UUID(int=1), type_=sa.Uuid), first=0, last=299, day=DAY
)


@pytest.mark.parametrize(
    ("query", "is_in_order"),
    [
        (loads_query(JobKind.BATCH).where(OPEN), False),
        (requests_query(["pool"], 9), False),
        (claimable("intake", 9, sa.and_(EXPANSION_DUE, jobs.c.id.in_([UUID(int=1)]))), False),
        (claimable("intake", 9, jobs.c.state == "validating"), False),
        (expiry_due_query(100), False),
        (resume_query(), False),
        (claim_query(CLAIM_MAX), True),
        (MISSING, False),
    ],
    ids=["loads", "requests", "expansion", "validation", "expiry", "resume", "outbox", "missing"],
)
def test_a_polling_query_uses_indexes(
    engine: sa.Engine, query: sa.ClauseElement, is_in_order: bool
) -> None:
    compiled = query.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE items_{DAY} PARTITION OF items {BOUNDS}"))
        connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(connection.scalars(sa.text(f"EXPLAIN {compiled}")))
    assert "Seq Scan" not in plan
    assert not is_in_order or "Sort" not in plan
