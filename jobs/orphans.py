"""Which stored objects no row needs: left by a process that died between object and row."""

from collections.abc import Callable, Collection
from typing import Final, TypeAlias
from uuid import UUID

import sqlalchemy as sa

from core.object_names import ANSWERS
from core.states import TERMINAL_STATES, JobKind
from jobs.tables import files, jobs

FindOrphans: TypeAlias = Callable[[sa.Connection, Collection[str]], set[str]]
"""From the keys of objects to those that nobody needs and, being old, nobody ever will."""

_UUID_HEX_DIGITS: Final = 32


def without_file(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the keys that no file names: their upload ended without its row."""
    known = sa.select(files.c.object_key).where(files.c.object_key.in_(keys))
    return set(keys) - set(connection.scalars(known))


def of_ended_batches(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized answers of batches that have their files, which hold copies."""
    by_job: dict[UUID, set[str]] = {}
    for key in keys:
        job, _, name = key.removeprefix(ANSWERS).partition("/")
        if name and len(job) == _UUID_HEX_DIGITS:
            by_job.setdefault(UUID(hex=job), set()).add(key)
    ended = sa.select(jobs.c.id).where(
        jobs.c.id.in_(by_job), jobs.c.kind == JobKind.BATCH, jobs.c.state.in_(TERMINAL_STATES)
    )
    return {key for job_id in connection.scalars(ended) for key in by_job[job_id]}
