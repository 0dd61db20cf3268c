"""Which stored objects no row needs: left by a process that died between object and row."""

import re
from collections.abc import Callable, Collection
from typing import Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from core.object_names import ANSWERS, KEYS, REQUESTS
from core.states import TERMINAL_STATES, JobKind
from jobs.tables.files import files
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import jobs

FindOrphans: TypeAlias = Callable[[sa.Connection, Collection[str]], set[str]]
"""From the keys of objects to those that nobody needs and, being old, nobody ever will."""

_UUID_HEX_DIGITS: Final = 32
_HEX: Final = re.compile(r"[0-9a-f]{32}")


def files_without_row(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the keys that no file needs: their upload ended without its row, or they came back.

    A store that was restored, or forgot a removal, has objects again whose rows say that they went.
    """
    known = sa.select(files.c.object_key).where(
        files.c.object_key.in_(keys), files.c.removed_at.is_(None)
    )
    return set(keys) - set(connection.scalars(known))


def outputs_of_ended_batches(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized answers of batches that have their files, which hold copies."""
    by_job = group_keys_by_job(keys, ANSWERS)
    ended = sa.select(jobs.c.id).where(
        jobs.c.id.in_(by_job), jobs.c.kind == JobKind.BATCH, jobs.c.state.in_(TERMINAL_STATES)
    )
    return {key for job_id in connection.scalars(ended) for key in by_job[job_id]}


def outputs_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized answers to calls whose caller died before it had read them."""
    by_job = group_keys_by_job(keys, ANSWERS)
    known = set(connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(by_job))))
    return {key for job_id in by_job.keys() - known for key in by_job[job_id]}


def inputs_without_open_request(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the inputs of requests that have ended, or whose row was never committed."""
    by_job = group_keys_by_job(keys, REQUESTS)
    is_open = jobs.c.state.not_in(TERMINAL_STATES)
    found = connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(by_job), is_open))
    return {key for job_id in by_job.keys() - set(found) for key in by_job[job_id]}


def job_keys_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the data keys of jobs that were deleted: made by who did not know of it."""
    by_job = group_keys_by_job(keys, KEYS)
    kept = sa.select(jobs.c.id).where(jobs.c.id.in_(by_job), jobs.c.deleted_at.is_(None))
    found = set(connection.scalars(kept))
    return {key for job_id in by_job.keys() - found for key in by_job[job_id]}


def call_keys(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the data keys of calls: a process that lives destroys its own long before."""
    del connection
    return set(keys)


def answers_without_idempotency_key(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the answers that no idempotency key names."""
    body_key = idempotency_keys.c.body_key
    return set(keys) - set(connection.scalars(sa.select(body_key).where(body_key.in_(keys))))


def group_keys_by_job(keys: Collection[str], prefix: str) -> dict[UUID, set[str]]:
    """Group keys by the job that they name behind `prefix`; others are left out."""
    by_job: dict[UUID, set[str]] = {}
    for key in keys:
        named = key.removeprefix(prefix)[:_UUID_HEX_DIGITS]
        if _HEX.fullmatch(named):
            by_job.setdefault(UUID(hex=named), set()).add(key)
    return by_job
