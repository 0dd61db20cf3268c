"""Goal: queries that run periodically use indexes."""

from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from jobs.expansion.job_loads import EXPANSION_DUE, loads_query, requests_query
from jobs.leasing.leases import claimable
from jobs.recovery.expiry import expiry_due_query
from jobs.recovery.resume import resume_query
from jobs.tables.jobs import jobs


@pytest.mark.parametrize(
    "query",
    [
        loads_query(),
        requests_query(["pool"], 9),
        claimable("intake", 9, sa.and_(EXPANSION_DUE, jobs.c.id.in_([UUID(int=1)]))),
        claimable("intake", 9, jobs.c.state == "validating"),
        expiry_due_query(100),
        resume_query(),
    ],
    ids=["loads", "requests", "expansion", "validation", "expiry", "resume"],
)
def test_a_polling_query_uses_indexes(engine: sa.Engine, query: sa.Select[Any]) -> None:
    compiled = query.compile(engine, compile_kwargs={"literal_binds": True})
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(connection.scalars(sa.text(f"EXPLAIN {compiled}")))
    assert "Seq Scan" not in plan
