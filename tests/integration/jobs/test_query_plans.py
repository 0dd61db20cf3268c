"""Goal: frequent queries of clients and periodic ones read few rows, however many are stored."""

import re
from hashlib import md5
from uuid import UUID

import pytest
import sqlalchemy as sa

from core.ids import new_uuid
from core.states import JobKind
from jobs.expansion.job_loads import EXPANSION_DUE, OPEN, loads_query, requests_query
from jobs.leasing.leases import claimable
from jobs.outbox_relay import CLAIM_MAX, claim_query
from jobs.recovery.expiry import expiry_due_query
from jobs.recovery.re_emit import MISSING_INDEXES
from jobs.recovery.resume import resume_query
from jobs.store import batches
from jobs.store import files as file_rows
from jobs.store.batches import job_query, limit_query
from jobs.store.files import stored_query
from jobs.store.keyset_pages import PageCursor, page_query
from jobs.store.removable_objects import removal_query
from jobs.tables.files import files
from jobs.tables.jobs import jobs
from jobs.validation.validating_files import VALIDATING
from tests.integration.jobs.plans import plan

pytestmark = pytest.mark.timeout(300)

FILL = """
INSERT INTO tenants (id, name) SELECT md5('t' || n)::uuid, 't' || n FROM generate_series(1, 20) n;
INSERT INTO files (id, tenant_id, purpose, filename, object_key, size_bytes, sha256, created_at,
                   expires_at, deleted_at, removed_at)
SELECT md5('f' || n)::uuid, md5('t' || 1 + n % 20)::uuid, 'batch', 'f', 'k' || n, 10, '',
       now() - n * interval '1 s', now() + interval '1 day',
       CASE WHEN n % 2 = 0 THEN now() END, CASE WHEN n % 2 = 0 THEN now() END
FROM generate_series(1, 8000) n;
INSERT INTO jobs (id, tenant_id, state, endpoint, input_file_id, input_key, input_bytes,
                  completion_window, created_at, expires_at)
SELECT md5('j' || n)::uuid, md5('t' || 1 + n % 20)::uuid,
       CASE WHEN n % 100 = 0 THEN 'validating' ELSE 'completed' END,
       '/v1/embeddings', md5('f' || n)::uuid, 'k' || n, 10, '24h',
       now() - n * interval '1 s', now() + interval '1 day'
FROM generate_series(1, 8000) n;
INSERT INTO job_counters (job_id) SELECT id FROM jobs;
INSERT INTO job_inputs (job_id, number, file_id, object_key, size_bytes, state, first_index,
                        item_count)
SELECT id, 1, input_file_id, input_key, 10, 'accepted', 1, 1 FROM jobs;
ANALYZE;
"""

OPEN_BATCHES = """
INSERT INTO jobs (id, tenant_id, endpoint, input_file_id, input_key, input_bytes,
                  completion_window, created_at, expires_at)
SELECT md5('o' || n)::uuid, md5('t' || 1 + n % 20)::uuid, '/v1/embeddings', md5('f1')::uuid, 'k',
       10, '24h', now(), now() + interval '1 day'
FROM generate_series(1, 2000) n
"""
OPEN_OF_EACH = 100
TENANTS = 21

TOMBSTONES = """
INSERT INTO tenants (id, name) VALUES (md5('t99')::uuid, 't99');
INSERT INTO files (id, tenant_id, purpose, filename, object_key, size_bytes, sha256, created_at,
                   expires_at, deleted_at, removed_at)
SELECT md5('g' || n)::uuid, md5('t99')::uuid, 'batch', 'f', 'g' || n, 10, '',
       now() - n * interval '1 s', now() + interval '1 day',
       CASE WHEN n < 400 THEN now() END, CASE WHEN n < 400 THEN now() END
FROM generate_series(1, 400) n;
INSERT INTO jobs (id, tenant_id, state, endpoint, input_file_id, input_key, input_bytes,
                  completion_window, created_at, expires_at, deleted_at)
SELECT md5('h' || n)::uuid, md5('t99')::uuid, 'completed', '/v1/embeddings', md5('g' || n)::uuid,
       'g', 10, '24h', now() - n * interval '1 s', now() + interval '1 day',
       CASE WHEN n < 400 THEN now() END
FROM generate_series(1, 400) n;
INSERT INTO job_counters (job_id) SELECT id FROM jobs WHERE tenant_id = md5('t99')::uuid;
"""
"""One tenant with 399 deleted files and batches, and one of each that is visible."""

READS_ALL_APPENDED = re.compile(r"'Seq Scan'[^{]*'job_inputs'")
"""Appended files stay `accepted` after their jobs end."""


@pytest.fixture
def connection(connection: sa.Connection) -> sa.Connection:
    for statement in FILL.split(";\n"):
        if statement.strip():
            connection.execute(sa.text(statement))
    return connection


def tenant(name: str) -> UUID:
    return UUID(bytes=md5(name.encode(), usedforsecurity=False).digest())


def test_list_queries_use_their_indexes(connection: sa.Connection) -> None:
    owner = tenant("t1")
    after = connection.execute(
        sa.select(jobs.c.id, jobs.c.created_at).where(jobs.c.tenant_id == owner).limit(1)
    ).one()
    behind = sa.tuple_(jobs.c.created_at, jobs.c.id) < sa.tuple_(
        sa.literal(after.created_at, jobs.c.created_at.type), sa.literal(after.id, jobs.c.id.type)
    )
    first = page_query(batches.listed_query(), jobs, owner, PageCursor(limit=20))
    for query in (first, first.where(behind)):
        text, rows = plan(connection, query)
        assert "ix_jobs_listed" in text
        assert rows <= 90  # jobs, counters and appended files

    # This tenant has visible files.
    first = page_query(file_rows.listed_query(), files, tenant("t2"), PageCursor(limit=20))
    text, rows = plan(connection, first)
    assert "ix_files_listed" in text
    assert rows <= 60

    for with_errors, job_id in ((False, new_uuid()), (True, after.id)):
        query = job_query(with_errors=with_errors).params(job_id=job_id, tenant_id=owner)
        text, rows = plan(connection, query)
        assert "pk_jobs" in text
        assert not READS_ALL_APPENDED.search(text)
        assert rows <= 3 + TENANTS  # the hours of one, in a table that fits into a page


@pytest.mark.parametrize("ascending", [True, False])
def test_list_queries_skip_tombstones(connection: sa.Connection, ascending: bool) -> None:
    connection.execute(sa.text(TOMBSTONES))
    connection.execute(sa.text("ANALYZE"))
    owner = tenant("t99")
    for query, table, limit in (
        (batches.listed_query(), jobs, 20),
        (file_rows.listed_query(), files, 10_000),
        (file_rows.listed_query(purpose="evals"), files, 1),
    ):
        cursor = PageCursor(limit=limit, ascending=ascending)
        text, rows = plan(connection, page_query(query, table, owner, cursor))
        assert rows <= 10, text


def test_removal_and_quota_queries_read_few_rows(connection: sa.Connection) -> None:
    text, rows = plan(connection, removal_query(100))
    assert "ix_files_unremoved" in text
    assert rows <= 100
    assert not READS_ALL_APPENDED.search(text)

    # Each tenant has 400 files, every second one removed.
    for tenant_id in (tenant("t1"), tenant("t2")):
        text, rows = plan(connection, stored_query(tenant_id))
        assert not READS_ALL_APPENDED.search(text)
        assert rows <= 500


def test_the_open_batch_limit_reads_only_its_tenant(connection: sa.Connection) -> None:
    connection.execute(sa.text(OPEN_BATCHES))
    connection.execute(sa.text("ANALYZE jobs"))
    text, rows = plan(connection, limit_query(tenant("t1"), open_max=1000))
    assert "ix_jobs_open_batches" in text
    assert rows <= OPEN_OF_EACH + 80


DAY = 20_000
BOUNDS = f"FOR VALUES FROM ({DAY}) TO ({DAY + 1})"
MISSING = sa.text(MISSING_INDEXES.text).bindparams(
    sa.bindparam("job_id", UUID(int=1), type_=sa.Uuid), first=0, last=299, day=DAY
)


@pytest.mark.parametrize(
    ("query", "is_in_order"),
    [
        (loads_query(JobKind.BATCH).where(OPEN), False),
        (VALIDATING, False),
        (requests_query(["pool"], 9), False),
        (claimable("intake", 9, sa.and_(EXPANSION_DUE, jobs.c.id.in_([UUID(int=1)]))), False),
        (claimable("intake", 9, jobs.c.state == "validating"), False),
        (expiry_due_query(100), False),
        (resume_query(), False),
        (claim_query(CLAIM_MAX), True),
        (MISSING, False),
    ],
    ids=[
        "loads",
        "files",
        "requests",
        "expansion",
        "validation",
        "expiry",
        "resume",
        "outbox",
        "missing",
    ],
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
