"""Goal: what intake reads in a round, and in its periodic tasks, does not grow with open jobs."""

from uuid import UUID

import sqlalchemy as sa

from benchmarks.data.open_jobs import fill_open_jobs
from jobs.expansion.job_loads import leases_query, requests_query
from jobs.expansion.load_cache import CHANGES, LoadCache, changes_since
from jobs.expansion.result_partitions import ResultPartitions
from jobs.leasing.lease_queue import fair_order_query
from jobs.recovery.expiry import closes_query, expiry_due_query, unvalidated_query
from jobs.tables.jobs import job_counters, job_cursors, jobs
from jobs.validation.verdicts import VALIDATION_DUE
from tests.integration.jobs.plans import plan
from tests.integration.jobs.rows import execute

JOBS, TENANTS = 20_000, 1000
CHANGED = 3
ROWS_MAX = 60


def test_a_round_and_the_periodic_tasks_read_what_changed(engine: sa.Engine) -> None:
    fill_open_jobs(engine, jobs=JOBS, tenants=TENANTS)
    with LoadCache(engine, ResultPartitions()).current() as loads:
        assert len(loads.by_id) > JOBS * 0.9
    for number, (key, values) in enumerate(
        [
            (job_cursors.c.job_id, {"repair_count": 1}),
            (job_counters.c.job_id, {"failed": 1}),
            (jobs.c.id, {"priority": 1}),
        ]
    ):
        few = sa.select(key).offset(10 * number).limit(CHANGED)
        execute(engine, sa.update(key.table).where(key.in_(few)).values(values))
    queries = {
        "changes": CHANGES.params(**changes_since(loads.snapshot, [UUID(int=1)])),
        "leases": leases_query(),
        "validation": fair_order_query("intake", VALIDATION_DUE, after=UUID(int=0)),
        "expiry": expiry_due_query(100),
        "closes": closes_query(60.0),
        "unvalidated": unvalidated_query(20.0),
        "requests": requests_query(["pool-dead", "pool-slow"], 1000),
    }
    with engine.begin() as connection:
        read = {name: plan(connection, query)[1] for name, query in queries.items()}
    assert read["changes"] >= 3 * CHANGED
    assert all(rows <= ROWS_MAX for rows in read.values()), read
