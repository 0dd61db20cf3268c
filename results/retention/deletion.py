"""Deletes a batch or a single request: one transaction hides it and leaves a tombstone.

    lock the job ─► tombstone ─► delete its files ─► delete its counters ─► record the deletion

Rows, objects and the messages that name its items are removed later in slices
(`results.retention.batch_removal`), since there may be half a million deliveries. The counters are
deleted at once: a results writer that reads a record of the job again then treats it as unknown, so
nothing is restored or billed twice. The ledger stays.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobKind, JobState
from jobs.errors import JobNotEndedError, JobNotFoundError
from jobs.store.days import job_day
from jobs.tables.files import files, job_inputs
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import job_counters, jobs
from results.metrics import RETENTION_FAILURES, RETENTION_REMOVED
from results.webhooks.tables import webhook_watches
from storage.postgres.items import items
from tenancy.deletions import What, record_deletion

LOG = logging.getLogger(__name__)

NAMED_FILES: Final = ("input_file_id", "output_file_id", "error_file_id")
"""Columns of `jobs` that name a file."""

_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "expired")

FAILURES_MAX: Final = 3
"""Failures that end a run: each may last a statement timeout, and other work waits."""

_SLICES_MAX: Final = 50  # of batches that the query finds, in one run


def delete_batch(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, *, key_id: UUID
) -> dict[str, int]:
    """Delete a terminal batch at the request of its owner, authenticated by API key `key_id`.

    Returns the counts of deleted items and files. Raises JobNotFoundError, also for foreign and
    deleted batches, and JobNotEndedError.
    """
    query = _kept_query(tenant_id, job_id, JobKind.BATCH)
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        raise JobNotFoundError
    if row.state not in TERMINAL_STATES:
        raise JobNotEndedError(f"Cannot delete a batch with status '{row.state}': cancel it first.")
    return make_tombstone(connection, row, key_id=key_id)


def delete_ended_request(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, *, key_id: UUID
) -> dict[str, int] | None:
    """Delete a single request that has ended, with its answer, at the request of its owner.

    Returns the counts of deleted items and files; None, without a change, when there is no such
    request, it has not ended, or it was cancelled and has no answer.
    """
    is_ended = jobs.c.state.in_([state.value for state in TERMINAL_STATES])  # no lock on others
    query = _kept_query(tenant_id, job_id, JobKind.REQUEST).where(is_ended)
    row = connection.execute(query.with_for_update()).one_or_none()
    if row is None:
        return None
    if row.state == JobState.CANCELLED and not _has_answer(connection, row):
        return None
    _expire_saved_answers(connection, row)
    return make_tombstone(connection, row, key_id=key_id)


def _kept_query(tenant_id: UUID, job_id: UUID | None, kind: JobKind) -> sa.Select[Any]:
    return sa.select(jobs).where(
        jobs.c.id == job_id,
        jobs.c.tenant_id == tenant_id,
        jobs.c.kind == kind.value,
        jobs.c.deleted_at.is_(None),
    )


def _has_answer(connection: sa.Connection, row: sa.Row[Any]) -> bool:
    answered = sa.exists().where(
        items.c.job_day == job_day(row.created_at),
        items.c.job_id == row.id,
        items.c.status_code > 0,
    )
    return bool(connection.scalar(sa.select(answered)))


def _expire_saved_answers(connection: sa.Connection, row: sa.Row[Any]) -> None:
    """Forget what idempotency keys saved of a request; a finaliser removes a large answer soon."""
    connection.execute(
        sa.update(idempotency_keys)
        .where(idempotency_keys.c.tenant_id == row.tenant_id, idempotency_keys.c.job_id == row.id)
        .values(body=None, expires_at=sa.func.now())
    )


def make_tombstone(
    connection: sa.Connection, row: sa.Row[Any], *, key_id: UUID | None
) -> dict[str, int]:
    """Make a tombstone of a terminal batch or request; `row` is its locked row of `jobs`.

    `key_id` is None for a deletion by age. Returns the counts of deleted items and files.
    """
    job_id: UUID = row.id
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == job_id)
        .values(
            deleted_at=sa.func.now(),
            removal_due_at=sa.func.now(),
            metadata=sa.null(),
            errors=sa.null(),
            traceparent="",
        )
    )
    file_count = _delete_files(connection, row)
    outcomes = connection.execute(
        sa.delete(job_counters)
        .where(job_counters.c.job_id == job_id)
        .returning(*(job_counters.c[name] for name in _OUTCOMES))
    ).one_or_none()
    # Without a watch no message is added while the old ones are removed.
    connection.execute(sa.delete(webhook_watches).where(webhook_watches.c.job_id == job_id))
    counts = {"items": 0 if outcomes is None else sum(outcomes), "files": file_count}
    record_deletion(
        connection,
        tenant_id=row.tenant_id,
        what=What.BATCH if row.kind == JobKind.BATCH else What.REQUEST,
        subject_id=job_id,
        key_id=key_id,
        counts=counts,
    )
    return counts


def files_of(connection: sa.Connection, row: sa.Row[Any]) -> list[UUID]:
    """Return the ids of the files that a job names; `row` is its row of `jobs`."""
    named = [getattr(row, column) for column in NAMED_FILES]
    appended = sa.select(job_inputs.c.file_id).where(job_inputs.c.job_id == row.id)
    return [*{file_id for file_id in (*named, *connection.scalars(appended)) if file_id}]


def _delete_files(connection: sa.Connection, row: sa.Row[Any]) -> int:
    """Delete the files of a job that no other batch names; return how many were deleted."""
    named = files_of(connection, row)
    # Locked in id order, and against a new job that names one of them: see `find_input`.
    query = sa.select(files.c.id).where(files.c.id.in_(named), files.c.deleted_at.is_(None))
    locked = connection.scalars(query.order_by(files.c.id).with_for_update()).all()
    unshared = set(locked) - _named_by_others(connection, row.id, locked)
    ended = connection.execute(
        sa.update(files)
        .where(files.c.id.in_(unshared))
        .values(
            deleted_at=sa.func.now(), expires_at=sa.func.least(files.c.expires_at, sa.func.now())
        )
    )
    return ended.rowcount


def _named_by_others(
    connection: sa.Connection, job_id: UUID, file_ids: Collection[UUID]
) -> set[UUID]:
    """Return which of the files another batch names that is not deleted."""
    found: set[UUID] = set()
    for column in NAMED_FILES:
        query = sa.select(jobs.c[column]).where(
            jobs.c[column].in_(file_ids), jobs.c.id != job_id, jobs.c.deleted_at.is_(None)
        )
        found |= set(connection.scalars(query))
    appended = (
        sa.select(job_inputs.c.file_id)
        .join(jobs, jobs.c.id == job_inputs.c.job_id)
        .where(job_inputs.c.file_id.in_(file_ids), jobs.c.id != job_id, jobs.c.deleted_at.is_(None))
    )
    return found | set(connection.scalars(appended))


def record_removal_failure(job_id: UUID, failure: sa.exc.DBAPIError) -> None:
    """Log and count a refused removal. Raises `failure` when its connection was lost.

    A lock, a timeout or a guard concerns one batch; a lost connection concerns all.
    """
    if failure.connection_invalidated:
        raise failure
    RETENTION_FAILURES.inc()
    # Without its text: the driver's messages quote values.
    code = getattr(failure.orig, "sqlstate", None) or type(failure).__name__
    LOG.warning("a batch stays for now", extra={"job": job_id.hex, "code": code})


@dataclass(frozen=True, slots=True)
class BatchTombstones:
    """Any number of processes may run, since each locks the batch."""

    engine: sa.Engine
    is_stopping: Callable[[], bool] = lambda: False
    _refused: set[UUID] = field(default_factory=set)

    def run_once(self, due: sa.Select[Any]) -> None:
        """Make tombstones of the rows of `jobs` that `due` finds.

        Raises one of DATABASE_UNAVAILABLE.
        """
        refused_max = len(self._refused) + FAILURES_MAX
        for _ in range(_SLICES_MAX):
            with self.engine.connect() as connection:
                found = connection.scalars(self._not_refused(due)).all()
            count = 0
            for job_id in found:
                if self.is_stopping() or len(self._refused) == refused_max:
                    return
                count += self._make_one(due, job_id)
            if not count:
                return

    def retry_refused(self) -> None:
        """Try refused batches again in the next run."""
        self._refused.clear()

    def _not_refused(self, due: sa.Select[Any]) -> sa.Select[UUID]:
        refused = sa.literal(list(self._refused), sa.ARRAY(sa.Uuid))
        return due.with_only_columns(jobs.c.id).where(jobs.c.id != sa.all_(refused))

    def _make_one(self, due: sa.Select[Any], job_id: UUID) -> int:
        """Make one tombstone unless another process has the lock; return how many were made."""
        locked = due.where(jobs.c.id == job_id).with_for_update(skip_locked=True)
        with self.engine.connect() as connection:  # an error here is an unavailable database
            try:
                with connection.begin():
                    row = connection.execute(locked).one_or_none()
                    if row is None:
                        return 0
                    make_tombstone(connection, row, key_id=None)
            except sa.exc.DBAPIError as failure:
                record_removal_failure(job_id, failure)
                self._refused.add(job_id)
                return 0
        RETENTION_REMOVED.labels("tombstone_made").inc()
        return 1
