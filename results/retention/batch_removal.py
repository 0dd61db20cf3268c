"""Removes the rows of deleted batches in slices, then their objects, and records the removal.

A deleted single request is a batch of one item here. Every step may be repeated, so a crash between
two slices costs nothing. Batches are served round
robin: after about SLICE_ROWS rows a batch is queued behind all others that are due.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from core.object_names import answer_prefix, order_prefix
from core.states import JobKind
from jobs.store.days import job_day
from jobs.store.removable_objects import destroy_job_key, find_removable_file, mark_removed
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_cursors, job_leases, jobs
from jobs.tables.quarantines import job_process_ends
from jobs.tables.retries import dead_items, item_attempts, item_copies, item_retries
from results.finaliser.output_files import result_prefix
from results.metrics import RETENTION_REMOVED
from results.retention.deletion import files_of, record_removal_failure
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import webhook_messages
from storage.objects.object_store import ObjectStore
from storage.postgres.database_times import seconds
from storage.postgres.items import items, job_provenance, job_slices
from tenancy.deletions import What, record_deletion

LOG = logging.getLogger(__name__)

SLICE_ROWS: Final = 2000
"""Rows per transaction, some ten milliseconds. More than the attempts that one item can have."""

SLICE_MESSAGES: Final = 100
"""Messages per transaction: each has deliveries to all endpoints, and their attempts."""

_ABOVE_ALL: Final = 2**31 - 1  # above every index
_LISTED_AT_ONCE: Final = 500
_PAUSE_S: Final = 60.0  # after a failure
_KINDS: Final = {
    items: "item",
    job_slices: "slice",
    item_copies: "copy",
    item_attempts: "attempt",
    item_retries: "retry",
    dead_items: "dead_item",
}


@dataclass(frozen=True, slots=True)
class BatchDataRemoval:
    """Removes rows and objects of deleted batches; any number of processes may run."""

    engine: sa.Engine
    store: ObjectStore
    is_stopping: Callable[[], bool] = lambda: False
    _keyless: set[UUID] = field(default_factory=set)  # due batches whose key is destroyed

    def run_once(self, rows_max: int) -> int:
        """Remove up to about `rows_max` rows, round robin over batches; return how many.

        Raises one of DATABASE_UNAVAILABLE. An unavailable store ends the run, so that other work of
        its thread does not wait for the store with each batch.
        """
        removed, is_store_available = 0, True
        while removed < rows_max and is_store_available and not self.is_stopping():
            with self.engine.connect() as connection:
                row = connection.execute(due_query(1)).one_or_none()
            if row is None:
                break
            count, is_store_available = self._remove_slice(row, min(SLICE_ROWS, rows_max - removed))
            removed += count
        return removed

    def _remove_slice(self, row: sa.Row[Any], rows_max: int) -> tuple[int, bool]:
        """Remove up to about `rows_max` rows of one batch, and after the last row its objects.

        Returns how many rows, and whether the store is available.
        """
        removed, is_store_available = 0, True
        try:
            if row.zero_retention and row.id not in self._keyless:
                destroy_job_key(self.store, row.id)  # remaining answers are unreadable from here on
                self._keyless.add(row.id)
            removed, is_complete = self._remove_rows(row, rows_max)
            if is_complete:
                self._finish(row)
                self._keyless.discard(row.id)
            else:
                self._postpone(row.id, 0)
        except MillraceError as failure:
            LOG.warning("objects stay", extra={"job": row.id.hex, "code": failure.code})
            self._postpone(row.id, _PAUSE_S)
            is_store_available = failure.disposition is not Disposition.RETRY
        except sa.exc.DBAPIError as failure:
            record_removal_failure(row.id, failure)
            self._postpone(row.id, _PAUSE_S)
        return removed, is_store_available

    def _remove_rows(self, row: sa.Row[Any], rows_max: int) -> tuple[int, bool]:
        """Remove rows of one job; return how many, and whether none is left."""
        removed = 0
        for kind, query in _slices(row):
            count = -1
            while count:
                if removed >= rows_max or self.is_stopping():
                    return removed, False
                with self.engine.begin() as connection:
                    count = connection.execute(query).rowcount
                removed += count
                RETENTION_REMOVED.labels(kind).inc(count)
        return removed, True

    def _finish(self, row: sa.Row[Any]) -> None:
        """Remove the objects and record it, unless stopped. Raises what a store raises."""
        is_batch = row.kind == JobKind.BATCH
        prefix = result_prefix(row.id)
        below = (prefix, answer_prefix(row.id), order_prefix(row.id))
        object_count = sum(map(self._delete_below, below))
        with self.engine.connect() as connection:
            found = [
                x
                for name in files_of(connection, row)
                for x in find_removable_file(connection, name)
            ]
        others = [one.object_key for one in found if not one.object_key.startswith(prefix)]
        for key in others:
            self.store.delete(key)
        object_count += len(others)
        RETENTION_REMOVED.labels("object").inc(object_count)
        if self.is_stopping():
            return  # objects may be left; another process finds them
        with self.engine.begin() as connection:
            if found:
                mark_removed(connection, [removal.file_id for removal in found])
            for table in (job_cursors, job_leases, job_inputs, job_process_ends, job_provenance):
                connection.execute(sa.delete(table).where(table.c.job_id == row.id))
            removed = connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == row.id, jobs.c.removal_due_at.is_not(None))
                .values(removal_due_at=None)
            ).rowcount
            if removed:
                record_deletion(
                    connection,
                    tenant_id=row.tenant_id,
                    what=What.BATCH_BODIES if is_batch else What.REQUESTS,
                    subject_id=row.id,
                    counts={"objects": object_count},
                )
        RETENTION_REMOVED.labels("batch" if is_batch else "request").inc(removed)

    def _delete_below(self, prefix: str) -> int:
        total = 0
        while found := list(islice(self.store.list(prefix), _LISTED_AT_ONCE)):
            if self.is_stopping():
                break
            for stored in found:
                self.store.delete(stored.key)
            total += len(found)
        return total

    def _postpone(self, job_id: UUID, pause_s: float) -> None:
        """Queue the batch behind all others that are due."""
        due_at = sa.func.now() + seconds(pause_s)
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == job_id, jobs.c.removal_due_at.is_not(None))
                .values(removal_due_at=due_at)
            )


def _slices(row: sa.Row[Any]) -> Iterator[tuple[str, sa.Delete]]:
    """Yield the statement of a slice of each kind; messages first: they may still be delivered."""
    yield "message", messages_query(row.id)
    for table, kind in _KINDS.items():
        yield kind, slice_query(table, row.id, job_day(row.created_at))


def due_query(limit: int) -> sa.Select[Any]:
    """Return the query of deleted batches with rows or objects to remove, longest due first."""
    return (
        sa.select(jobs)
        .where(jobs.c.removal_due_at <= sa.func.now())
        .order_by(jobs.c.removal_due_at)
        .limit(limit)
    )


def waiting_query() -> sa.Select[Any]:
    """Return the query of how many deleted batches wait for removal."""
    return sa.select(sa.func.count()).where(jobs.c.removal_due_at.is_not(None))


def slice_query(table: sa.Table, job_id: UUID, day: int) -> sa.Delete:
    """Return the statement that removes about SLICE_ROWS rows of a job, lowest key first.

    `day` selects the partition of items. It removes nothing only when nothing is left.
    """
    job, part = _keys(table)
    where = [job == job_id]
    if table is items:
        where.append(items.c.job_day == day)
    bound = sa.select(part).where(*where).order_by(part).offset(SLICE_ROWS).limit(1)
    below = sa.func.coalesce(bound.scalar_subquery(), _ABOVE_ALL)
    return sa.delete(table).where(*where, part < below)


def messages_query(job_id: UUID) -> sa.Delete:
    """Return the statement that removes SLICE_MESSAGES messages that name items of a job.

    Their deliveries and attempts go with them. The terminal event may still be delivered.
    """
    named = sa.select(webhook_messages.c.id).where(
        webhook_messages.c.job_id == job_id, webhook_messages.c.event_type == ITEM_FAILED
    )
    return sa.delete(webhook_messages).where(webhook_messages.c.id.in_(named.limit(SLICE_MESSAGES)))


def _keys(table: sa.Table) -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Return the columns of a row's job and of its position in it."""
    position = "first_sequence" if table is job_slices else "item_index"
    return table.c.job_id, table.c[position]
