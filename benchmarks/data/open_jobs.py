"""Fills a database with open jobs of many tenants, in the states that they have while they wait.

Of twenty jobs, thirteen are expanded and wait for a pool without replicas, five for a slow pool,
one is expanded in part, and one is paused.
"""

from typing import Final

import sqlalchemy as sa

DEAD_POOL: Final = "pool-dead"
SLOW_POOL: Final = "pool-slow"
ITEMS: Final = 100
"""Items of each job."""

_FILL: Final = (
    """
    INSERT INTO tenants (id, name)
    SELECT md5('tenant ' || n)::uuid, 'tenant ' || n FROM generate_series(0, :tenants - 1) AS n
    """,
    """
    INSERT INTO files (id, tenant_id, purpose, filename, object_key, size_bytes, sha256)
    SELECT md5('file ' || n)::uuid, md5('tenant ' || n)::uuid, 'batch', 'in.jsonl', 'files/' || n,
        20000, ''
    FROM generate_series(0, :tenants - 1) AS n
    """,
    """
    INSERT INTO jobs (id, tenant_id, state, endpoint, input_file_id, input_key, input_bytes,
        completion_window, model, model_version, pool, total_count, created_at, expires_at,
        in_progress_at, paused_at, control_version, void_below)
    SELECT md5('job ' || n)::uuid, md5('tenant ' || n % :tenants)::uuid, 'in_progress',
        '/v1/embeddings', md5('file ' || n % :tenants)::uuid, 'files/' || n % :tenants, 20000,
        '24h', 'model', '1',
        CASE WHEN n / :tenants % 20 < 13 THEN 'pool-dead' ELSE 'pool-slow' END, :items,
        now() - interval '1 hour' + n * interval '10 ms', now() + interval '1 day', now(),
        CASE WHEN n / :tenants % 20 = 19 THEN now() END, (n / :tenants % 20 = 19)::int,
        (n / :tenants % 20 = 19)::int
    FROM generate_series(1, :jobs) AS n
    """,
    """
    INSERT INTO job_cursors (job_id, item_index, byte_offset, line_number)
    SELECT md5('job ' || n)::uuid, emitted, emitted * 200, emitted
    FROM (SELECT n, CASE WHEN n / :tenants % 20 < 18 THEN :items ELSE :items / 2 END AS emitted
          FROM generate_series(1, :jobs) AS n) AS expanded
    """,
    """
    INSERT INTO job_counters (job_id, succeeded, updated_at)
    SELECT md5('job ' || n)::uuid, n % 10, now() - interval '30 minutes'
    FROM generate_series(1, :jobs) AS n
    """,
    """
    INSERT INTO job_leases (job_id, role, holder, epoch, expires_at)
    SELECT md5('job ' || n)::uuid, 'intake', 'intake-gone', 1, now() - interval '30 minutes'
    FROM generate_series(1, :jobs) AS n
    """,
)


def fill_open_jobs(engine: sa.Engine, *, jobs: int, tenants: int) -> None:
    """Insert the jobs with their tenants, cursors, counters and released leases."""
    bound = {"jobs": jobs, "tenants": tenants, "items": ITEMS}
    with engine.begin() as connection:
        connection.execute(sa.text("SET LOCAL statement_timeout = '300s'"))
        for statement in _FILL:
            connection.execute(sa.text(statement), bound)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("VACUUM ANALYZE"))
