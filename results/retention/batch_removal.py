"""What a deleted batch leaves behind: rows in slices, then its objects, then the word that it is
gone. Any of it may be repeated; a crash between two slices costs nothing.

Batches take turns: after about SLICE_ROWS rows one waits behind all others that are due.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import MillraceError
from core.object_names import answer_prefix
from jobs.store.days import job_day
from jobs.store.file_removal import mark_removed, removable
from jobs.store.job_keys import destroy_key
from jobs.tables.appended_files import job_inputs
from jobs.tables.copies import item_copies
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_cursors, job_leases
from jobs.tables.retries import dead_items, item_attempts, item_retries
from results.finaliser.output_files import result_prefix
from results.retention.deletion import files_of
from results.retention.metrics import REMOVED
from results.retention.removal_failures import record_removal_failure
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import webhook_messages
from storage.objects.object_store import ObjectStore
from storage.postgres.intervals import seconds
from storage.postgres.items import items, job_slices
from tenancy.deletions import Deletion, What, record_deletion

LOG = logging.getLogger(__name__)

SLICE_ROWS: Final = 2000
"""Rows of one transaction: some ten milliseconds. More than the attempts that one item can have."""

SLICE_MESSAGES: Final = 100
"""Messages of one transaction: each takes its deliveries to all endpoints with it, and tries."""

_ABOVE_ALL: Final = 2**31 - 1  # no index is so large
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
    """Removes rows and objects of deleted batches; any number of processes may."""

    engine: sa.Engine
    store: ObjectStore
    is_stopping: Callable[[], bool] = lambda: False
    _keyless: set[UUID] = field(default_factory=set)  # of the batches that still wait

    def run_once(self, rows_max: int) -> int:
        """Remove up to about `rows_max` rows, the batches taking turns; return how many.

        Raises one of DATABASE_AWAY. A store that is away is asked again in a later turn.
        """
        removed = 0
        while removed < rows_max and not self.is_stopping():
            with self.engine.connect() as connection:
                row = connection.execute(due_query(1)).one_or_none()
            if row is None:
                break
            removed += self._take_turn(row, min(SLICE_ROWS, rows_max - removed))
        return removed

    def _take_turn(self, row: sa.Row[Any], rows_max: int) -> int:
        """Remove up to about `rows_max` rows of one batch, and what follows the last of them."""
        removed = 0
        try:
            if row.zero_retention and row.id not in self._keyless:
                destroy_key(self.store, row.id)  # what is left after it says nothing
                self._keyless.add(row.id)
            removed, is_whole = self._rows_of(row, rows_max)
            if is_whole:
                self._finish(row)
                self._keyless.discard(row.id)
            else:
                self._put_off(row.id, 0)
        except MillraceError as failure:
            LOG.warning("objects stay", extra={"job": row.id.hex, "code": failure.code})
            self._put_off(row.id, _PAUSE_S)
        except sa.exc.DBAPIError as failure:
            record_removal_failure(row.id, failure)
            self._put_off(row.id, _PAUSE_S)
        return removed

    def _rows_of(self, row: sa.Row[Any], rows_max: int) -> tuple[int, bool]:
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
                REMOVED.labels(kind).inc(count)
        return removed, True

    def _finish(self, row: sa.Row[Any]) -> None:
        """Remove the objects, then say so unless a stop cut it. Raises what the store raises."""
        prefix = result_prefix(row.id)
        object_count = self._delete_below(prefix) + self._delete_below(answer_prefix(row.id))
        with self.engine.connect() as connection:
            found = [x for name in files_of(connection, row) for x in removable(connection, name)]
        others = [one.object_key for one in found if not one.object_key.startswith(prefix)]
        for key in others:
            self.store.delete(key)
        object_count += len(others)
        REMOVED.labels("object").inc(object_count)
        if self.is_stopping():
            return  # objects may be left, and a stop is never taken back: another turn finds them
        with self.engine.begin() as connection:
            if found:
                mark_removed(connection, [removal.file_id for removal in found])
            for table in (job_cursors, job_leases, job_inputs):
                connection.execute(sa.delete(table).where(table.c.job_id == row.id))
            gone = connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == row.id, jobs.c.removal_due_at.is_not(None))
                .values(removal_due_at=None)
            ).rowcount
            if gone:
                deletion = Deletion(
                    tenant_id=row.tenant_id,
                    what=What.BATCH_BODIES,
                    subject_id=row.id,
                    counts={"objects": object_count},
                )
                record_deletion(connection, deletion)
        REMOVED.labels("batch").inc(gone)

    def _delete_below(self, prefix: str) -> int:
        found = list(islice(self.store.list(prefix), _LISTED_AT_ONCE))
        total = 0
        while found and not self.is_stopping():
            for stored in found:
                self.store.delete(stored.key)
            total += len(found)
            found = list(islice(self.store.list(prefix), _LISTED_AT_ONCE))
        return total

    def _put_off(self, job_id: UUID, pause_s: float) -> None:
        """Let all others that are due have their turn first."""
        later = sa.func.now() + seconds(pause_s)
        with self.engine.begin() as connection:
            connection.execute(
                sa.update(jobs)
                .where(jobs.c.id == job_id, jobs.c.removal_due_at.is_not(None))
                .values(removal_due_at=later)
            )


def _slices(row: sa.Row[Any]) -> Iterator[tuple[str, sa.Delete]]:
    """Yield what removes a slice of each kind; messages first, as they may still be delivered."""
    yield "message", messages_query(row.id)
    for table, kind in _KINDS.items():
        yield kind, slice_query(table, row.id, job_day(row.created_at))


def due_query(limit: int) -> sa.Select[Any]:
    """Return the query of deleted batches whose rows and objects are to go, longest due first."""
    return (
        sa.select(jobs)
        .where(jobs.c.removal_due_at <= sa.func.now())
        .order_by(jobs.c.removal_due_at)
        .limit(limit)
    )


def waiting_query() -> sa.Select[Any]:
    """Return the query of how many batches wait for it."""
    return sa.select(sa.func.count()).where(jobs.c.removal_due_at.is_not(None))


def slice_query(table: sa.Table, job_id: UUID, day: int) -> sa.Delete:
    """Return the statement that removes about SLICE_ROWS rows of a job, the first of its key.

    `day` names the partition of items. It removes nothing only when nothing is left.
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

    Their deliveries and tries go with them. That the job has ended may still be delivered.
    """
    named = sa.select(webhook_messages.c.id).where(
        webhook_messages.c.job_id == job_id, webhook_messages.c.event_type == ITEM_FAILED
    )
    return sa.delete(webhook_messages).where(webhook_messages.c.id.in_(named.limit(SLICE_MESSAGES)))


def _keys(table: sa.Table) -> tuple[sa.Column[Any], sa.Column[Any]]:
    """Return the columns that name the job and, in it, the place of a row."""
    place = "first_sequence" if table is job_slices else "item_index"
    return table.c.job_id, table.c[place]
