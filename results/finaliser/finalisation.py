"""Finalises one settled batch: writes its files, then records them in one transaction.

    read rows ─► objects of this epoch ─► [fenced] files, state, event ─► delete leftovers

A finaliser that lost its lease deletes its objects; those of one that died are deleted by the next.
"""

import logging
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import LeaseLostError, MillraceError
from core.ids import JOB, new_uuid, public_id
from core.object_names import answer_prefix, order_prefix, positions_key
from core.states import CloseReason, JobKind, JobState
from jobs.input.input_files import input_files
from jobs.leasing.leases import Lease, lock_lease
from jobs.store.days import job_day
from jobs.store.files import RESULT_PURPOSE, NewFile, insert_file
from jobs.store.outbox import event_insert
from jobs.tables.jobs import jobs
from results.finaliser.input_custom_ids import CompleteCustomIds
from results.finaliser.item_rows import RowDecrypter, item_rows
from results.finaliser.line_provenance import read_line_tags
from results.finaliser.output_files import ResultFiles, result_prefix, write_result_files
from results.finaliser.output_lines import ItemRow
from storage.objects.object_store import ObjectStore, StoredObject
from storage.postgres.outbox import NOTIFY_OUTBOX

LOG = logging.getLogger(__name__)


def is_settled(kind: JobKind) -> sa.ColumnElement[bool]:
    """Return the condition that a job of a kind has all its rows and is not terminal."""
    # Literals, so that the planner can use the partial index on unfinished jobs.
    states: list[sa.ColumnElement[str]] = [
        sa.literal_column("'finalizing'"),
        sa.literal_column("'cancelling'"),
    ]
    return sa.and_(
        jobs.c.settled_at.is_not(None), jobs.c.kind == kind.value, jobs.c.state.in_(states)
    )


READY: Final = is_settled(JobKind.BATCH)
"""Settled batches without output files."""

_TIMESTAMPS: Final = {
    JobState.COMPLETED: "completed_at",
    JobState.EXPIRED: "expired_at",
    JobState.CANCELLED: "cancelled_at",
}

_DELETED_PER_ROUND: Final = 1000  # listed at once, to bound memory
_DELETE_ROUNDS_MAX: Final = 100_000  # ends the loop for a store whose listing lags behind


def finalise(
    engine: sa.Engine, store: ObjectStore, lease: Lease, *, check: Callable[[], None]
) -> JobState:
    """Bring a job to its terminal state and return it; `check` raises once the lease is lost.

    Raises LeaseLostError after deleting its objects, one of DATABASE_UNAVAILABLE, and what a store
    raises. The job is then unchanged, or terminal when only the response to the commit was lost.
    """
    with engine.connect() as connection:
        job = connection.execute(sa.select(jobs).where(jobs.c.id == lease.job_id)).one()
        inputs = input_files(connection, job)
        tags = read_line_tags(connection, lease.job_id)  # the job is settled: all of them
    rows: Iterator[ItemRow] = item_rows(
        engine, lease.job_id, day=job_day(job.created_at), total_count=job.total_count, check=check
    )
    if job.zero_retention:
        rows = map(RowDecrypter(store, job.id).decrypt, rows)
    custom_ids = CompleteCustomIds(store, inputs)
    written = write_result_files(
        store, rows, job_id=lease.job_id, epoch=lease.epoch, custom_ids=custom_ids, tags=tags
    )
    if count := custom_ids.unreadable_count:
        LOG.error("lines of an input file are unreadable", extra={"job": job.id, "lines": count})
    try:
        with engine.begin() as connection:
            state = _record_end(connection, lease, job, written)
    except LeaseLostError:
        for stored in (written.output, written.error):
            if stored is not None:
                store.delete(stored.key)
        raise
    # A restored database may need the positions: its cursor counts in them.
    order_keys = [] if job.zero_retention else [file.order_key for file in inputs]
    kept = {positions_key(key) for key in order_keys if key}
    _delete_leftovers(store, lease, kept, check)
    return state


def _record_end(
    connection: sa.Connection, lease: Lease, job: sa.Row[Any], written: ResultFiles
) -> JobState:
    """Record files, state and event. The job may have been cancelled since it was read."""
    # Lock the job before its lease, in the order of claims: the other order could deadlock.
    current = connection.execute(
        sa.select(jobs.c.state, jobs.c.close_reason, sa.extract("epoch", sa.func.now()))
        .where(jobs.c.id == lease.job_id)
        .with_for_update()
    ).one()
    lock_lease(connection, lease)
    if current.state not in {JobState.FINALIZING, JobState.CANCELLING}:
        raise LeaseLostError(job_id=lease.job_id, role=lease.role, epoch=lease.epoch)
    target = _target(JobState(current.state), current.close_reason)
    changed = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id == lease.job_id, jobs.c.state == current.state)
        .values(
            state=target,
            output_file_id=_add_file(connection, job, written.output, "output"),
            error_file_id=_add_file(connection, job, written.error, "error"),
            **{_TIMESTAMPS[target]: sa.func.now()},
        )
    )
    assert changed.rowcount == 1  # the row is locked
    connection.execute(event_insert(lease.job_id, job.tenant_id, target, float(current[2])))
    connection.execute(NOTIFY_OUTBOX)
    return target


def _target(state: JobState, close_reason: str | None) -> JobState:
    if state is JobState.CANCELLING:
        return JobState.CANCELLED
    return JobState.EXPIRED if close_reason == CloseReason.EXPIRED else JobState.COMPLETED


def _add_file(
    connection: sa.Connection, job: sa.Row[Any], stored: StoredObject | None, name: str
) -> UUID | None:
    if stored is None:
        return None
    file = NewFile(
        file_id=new_uuid(),
        tenant_id=job.tenant_id,
        purpose=RESULT_PURPOSE,
        filename=f"{public_id(JOB, job.id)}_{name}.jsonl",
        object_key=stored.key,
        size_bytes=stored.size_bytes,
        sha256=stored.sha256_hex,
        expires_after_s=job.output_expires_after_s,
    )
    insert_file(connection, file)
    return file.file_id


def _delete_leftovers(
    store: ObjectStore, lease: Lease, kept: Collection[str], check: Callable[[], None]
) -> None:
    """Delete large answers that the files contain now, orders but for `kept`, and files of
    attempts that died.

    The orphan sweep deletes what a stop or an unavailable store leaves.
    """
    try:
        _delete_older_epochs(store, lease)
        for stored in list(islice(store.list(order_prefix(lease.job_id)), _DELETED_PER_ROUND)):
            check()
            if stored.key not in kept:
                store.delete(stored.key)
        _delete_below(store, answer_prefix(lease.job_id), check)
    except MillraceError as error:  # the job is terminal; only storage is wasted
        LOG.warning("objects left over", extra={"job": lease.job_id, "code": error.code})


def _delete_older_epochs(store: ObjectStore, lease: Lease) -> None:
    prefix = result_prefix(lease.job_id)
    for found in list(store.list(prefix)):
        epoch = found.key.removeprefix(prefix).partition("/")[0]
        if epoch.isdecimal() and int(epoch) < lease.epoch:
            LOG.info("orphan deleted", extra={"job": lease.job_id, "epoch": int(epoch)})
            store.delete(found.key)


def _delete_below(store: ObjectStore, prefix: str, check: Callable[[], None]) -> None:
    for _ in range(_DELETE_ROUNDS_MAX):
        found = list(islice(store.list(prefix), _DELETED_PER_ROUND))
        for stored in found:
            check()
            store.delete(stored.key)
        if len(found) < _DELETED_PER_ROUND:
            return
