"""Queries of the database under test."""

import math
from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from chaos.checkers.results import Tally, Usage
from chaos.clients.client import TERMINAL, Client
from chaos.installations.hosts import wait_until
from core.ids import JOB, SINGLE, parse_public_id, public_id

PROGRESS_S_MAX: Final = 180.0
_IS_HOLDER: Final = """l.role = :role AND l.expires_at > now() AND :user = (
    SELECT c.host FROM chaos.leases c WHERE c.job_id = l.job_id AND c.role = l.role AND c.claims
    ORDER BY c.sequence DESC LIMIT 1)"""
_UNFINISHED: Final = "state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"


def select(engine: sa.Engine, query: str, **bound: object) -> list[dict[str, Any]]:
    """Return the rows of a query, each as column to value."""
    with engine.connect() as connection:
        rows = connection.execute(sa.text(query), bound).mappings()
        return [{str(column): value for column, value in row.items()} for row in rows]


def select_value(engine: sa.Engine, query: str, **bound: object) -> Any:
    """Return the value of a query with one column and at most one row; None without a row."""
    with engine.connect() as connection:
        return connection.execute(sa.text(query), bound).scalar_one_or_none()


def job_states(engine: sa.Engine) -> dict[str, str]:
    """Return every batch and its state."""
    rows = select(engine, "SELECT id, state FROM jobs WHERE kind = 'batch'")
    return {public_id(JOB, row["id"]): row["state"] for row in rows}


def billed_usage(engine: sa.Engine, job: str) -> Usage:
    """Return the usage that the ledger bills for a job or a durable call."""
    kind = SINGLE if job.startswith(f"{SINGLE}_") else JOB
    (row,) = select(
        engine,
        "SELECT coalesce(sum(item_count), 0)::bigint AS items, "
        "coalesce(sum(input_tokens), 0)::bigint AS input_tokens, "
        "coalesce(sum(output_tokens), 0)::bigint AS output_tokens "
        "FROM usage_ledger WHERE job_id = :job",
        job=parse_public_id(kind, job),
    )
    return Usage(**row)


def counter_tally(engine: sa.Engine, job: str) -> Tally:
    """Return a job's counters; all 0 when their row is deleted."""
    rows = select(
        engine,
        "SELECT succeeded, failed, cancelled, expired, input_tokens, output_tokens "
        "FROM job_counters WHERE job_id = :job",
        job=parse_public_id(JOB, job),
    )
    return Tally(**rows[0]) if rows else Tally()


def succeeded_count(engine: sa.Engine) -> int:
    """Return how many items have succeeded over all jobs; failures are no progress."""
    return int(select_value(engine, "SELECT coalesce(sum(succeeded), 0) FROM job_counters"))


def unfinished_count(engine: sa.Engine, since_s: float, until_s: float) -> int:
    """Return how many jobs created in a period, in epoch seconds, are not terminal."""
    query = (
        "SELECT count(*) FROM jobs WHERE kind = 'batch' AND state <> ALL(:ends) "
        "AND created_at BETWEEN to_timestamp(:since_s) AND to_timestamp(:until_s)"
    )
    bound = {"ends": list(TERMINAL), "since_s": since_s, "until_s": until_s}
    return int(select_value(engine, query, **bound))


class JobTiming(NamedTuple):
    """When a job was created, in epoch seconds, and how long its phases took.

    Infinite: the phase has not ended.
    """

    created_s: float
    took_s: float  # until it was completed
    validated_s: float  # until its file was validated
    settled_s: float  # until its last item had a result


def job_timings(engine: sa.Engine, jobs: Collection[str]) -> dict[str, JobTiming]:
    """Return the timings of jobs by the database's clock."""
    rows = select(
        engine,
        "SELECT id, extract(epoch FROM created_at) AS created_s, "
        "extract(epoch FROM completed_at - created_at) AS took_s, "
        "extract(epoch FROM in_progress_at - created_at) AS validated_s, "
        "extract(epoch FROM settled_at - created_at) AS settled_s "
        "FROM jobs WHERE id = ANY(:ids)",
        ids=[parse_public_id(JOB, job) for job in jobs],
    )
    return {
        public_id(JOB, row["id"]): JobTiming(
            *(math.inf if row[name] is None else float(row[name]) for name in JobTiming._fields)
        )
        for row in rows
    }


def row_times(engine: sa.Engine, job: str) -> list[float]:
    """Return when the rows of a job's items were written, ascending, in epoch seconds."""
    rows = select(
        engine,
        "SELECT extract(epoch FROM finished_at)::float8 AS at_s FROM items "
        "WHERE job_id = :job ORDER BY finished_at",
        job=parse_public_id(JOB, job),
    )
    return [row["at_s"] for row in rows]


def ended_s(engine: sa.Engine, job: str, status: str | None = None) -> float:
    """Return when a job ended, in `status` if given; infinite if it did not.

    Epoch seconds, by the database's clock.
    """
    query = (
        "SELECT extract(epoch FROM coalesce(completed_at, failed_at, expired_at, cancelled_at)) "
        "FROM jobs WHERE id = :job AND state = coalesce(:status, state)"
    )
    found = select_value(engine, query, job=parse_public_id(JOB, job), status=status)
    return math.inf if found is None else float(found)


def held_lease_count(engine: sa.Engine, role: str, user: str) -> int:
    """Return how many leases of a role the host of a database user holds."""
    query = f"SELECT l.job_id FROM job_leases l WHERE {_IS_HOLDER}"
    return len(select(engine, query, role=role, user=user))


def losable_lease_count(engine: sa.Engine, role: str, user: str) -> int:
    """Return how many leases another host takes if the holder is paused now.

    Those are leases of unfinished jobs that no transaction has locked.
    """
    query = (
        "SELECT l.job_id FROM job_leases l JOIN jobs j ON j.id = l.job_id "
        f"WHERE {_IS_HOLDER} AND j.{_UNFINISHED} FOR UPDATE OF l, j SKIP LOCKED"
    )
    return len(select(engine, query, role=role, user=user))


def await_jobs(
    engine: sa.Engine,
    client: Client,
    job_ids: Collection[str],
    until_s: float,
    *,
    note: Callable[[str], None] = lambda _: None,
) -> dict[str, dict[str, Any]]:
    """Return terminal jobs, and at the deadline the others as they are, for the checkers."""
    seen = client.await_terminal(job_ids, until_s)
    jobs = {
        job_id: {"status": "unknown", **seen.get(job_id, {}), "id": job_id} for job_id in job_ids
    }
    if late := [job_id for job_id, job in jobs.items() if job["status"] not in TERMINAL]:
        stuck = unfinished_jobs(engine)
        client.recorder.record(client.name, "stuck", " ".join(late), "fail", jobs=stuck)
        note(f"not terminal: {' '.join(late)}")
    return jobs


def cancel_jobs(
    engine: sa.Engine, client: Client, job_ids: Collection[str], until_s: float
) -> dict[str, dict[str, Any]]:
    """Cancel jobs whose rest is not needed, and return them as `await_jobs` does."""
    for job_id in job_ids:
        client.cancel(job_id, until_s)
    return await_jobs(engine, client, job_ids, until_s)


def await_progress(engine: sa.Engine, items: int) -> None:
    """Wait until so many more items have succeeded. Raises DrillError."""
    goal = succeeded_count(engine) + items
    wait_until(lambda: succeeded_count(engine) >= goal, PROGRESS_S_MAX, "progress")


def unfinished_jobs(engine: sa.Engine) -> list[dict[str, Any]]:
    """Return the rows of unfinished jobs, for analysis."""
    return select(
        engine,
        "SELECT j.id::text, j.state, j.total_count, u.item_index AS cursor, c.succeeded, c.failed, "
        "c.cancelled, c.expired, c.closed_reason, u.repaired_at::text "
        "FROM jobs j LEFT JOIN job_counters c ON c.job_id = j.id "
        f"LEFT JOIN job_cursors u ON u.job_id = j.id WHERE j.{_UNFINISHED}",
    )
