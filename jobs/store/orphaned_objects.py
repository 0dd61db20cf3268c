"""Finds stored objects that no row needs, left by a process that died between object and row.

Each function has the type `FindOrphans`.
"""

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
"""Returns the orphans among object keys that are old enough never to be needed again."""

_UUID_HEX_DIGITS: Final = 32
_HEX: Final = re.compile(r"[0-9a-f]{32}")


def files_without_row(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the keys without a file: from an upload without its row, or restored by the store.

    A store that was restored, or lost a removal, has objects whose rows are marked as removed.
    """
    known = sa.select(files.c.object_key).where(
        files.c.object_key.in_(keys), files.c.removed_at.is_(None)
    )
    return set(keys) - set(connection.scalars(known))


def outputs_of_ended_batches(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized outputs of batches that ended; their result files contain them."""
    by_job = group_keys_by_job(keys, ANSWERS)
    ended = sa.select(jobs.c.id).where(
        jobs.c.id.in_(by_job), jobs.c.kind == JobKind.BATCH, jobs.c.state.in_(TERMINAL_STATES)
    )
    return {key for job_id in connection.scalars(ended) for key in by_job[job_id]}


def outputs_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized outputs of calls whose API replica died before it read them."""
    by_job = group_keys_by_job(keys, ANSWERS)
    known = set(connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(by_job))))
    return {key for job_id in by_job.keys() - known for key in by_job[job_id]}


def inputs_without_open_request(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the inputs of requests that ended, or whose row was never committed."""
    by_job = group_keys_by_job(keys, REQUESTS)
    is_open = jobs.c.state.not_in(TERMINAL_STATES)
    found = connection.scalars(sa.select(jobs.c.id).where(jobs.c.id.in_(by_job), is_open))
    return {key for job_id in by_job.keys() - set(found) for key in by_job[job_id]}


def job_keys_without_job(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the data keys of deleted jobs, created by a process that missed the deletion."""
    by_job = group_keys_by_job(keys, KEYS)
    kept = sa.select(jobs.c.id).where(jobs.c.id.in_(by_job), jobs.c.deleted_at.is_(None))
    found = set(connection.scalars(kept))
    return {key for job_id in by_job.keys() - found for key in by_job[job_id]}


def call_keys(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return all data keys of calls: a live process destroys its own keys much earlier."""
    del connection
    return set(keys)


def answers_without_idempotency_key(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the stored answers that no idempotency key refers to."""
    body_key = idempotency_keys.c.body_key
    return set(keys) - set(connection.scalars(sa.select(body_key).where(body_key.in_(keys))))


def group_keys_by_job(keys: Collection[str], prefix: str) -> dict[UUID, set[str]]:
    """Group keys by the job id behind `prefix`; keys without one are left out."""
    by_job: dict[UUID, set[str]] = {}
    for key in keys:
        job_hex = key.removeprefix(prefix)[:_UUID_HEX_DIGITS]
        if _HEX.fullmatch(job_hex):
            by_job.setdefault(UUID(hex=job_hex), set()).add(key)
    return by_job
