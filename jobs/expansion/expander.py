"""One round over the jobs that this process expands: emit, then move their cursors."""

import logging
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import LeaseLostError, MillraceError
from jobs import metrics
from jobs.expansion.cursors import ExpansionCursor, advance_cursor
from jobs.expansion.emission import InputChangedError, ItemReader, send_items
from jobs.expansion.job_failures import is_job_failure
from jobs.expansion.job_loads import OpenJob
from jobs.expansion.leased_jobs import LeasedJob, LeasedJobs
from jobs.store.copies import find_copy_indexes
from storage.crypto.data_keys import DataKeys
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer
from topics.records.records import Item

_LOG = logging.getLogger(__name__)

ROUND_ITEMS_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 16 * 1024 * 1024
"""What one round sends before it waits for acknowledgements: bounds memory and repeats."""


class Expander:
    """Emits items of held jobs as far as they are allowed. Used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: LogProducer,
        held: LeasedJobs,
        clock: Clock,
    ) -> None:
        """`held` says which jobs, and how far each has come."""
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._held = held
        self._clock = clock
        self._keys = DataKeys(objects, clock)
        self._last: UUID | None = None

    def round(self, allowed: Mapping[UUID, int]) -> int:
        """Emit what is `allowed`, bounded by a round's size; return how many items.

        Raises DeliveryError, and `DATABASE_AWAY`: then the cursors stand where they stood.
        """
        moved: list[tuple[LeasedJob, ExpansionCursor]] = []
        count, byte_count = 0, 0
        try:
            for job_id in self._in_turn(allowed):
                if count >= ROUND_ITEMS_MAX or byte_count >= ROUND_BYTES_MAX:
                    break
                held = self._held.by_id[job_id]
                self._last = job_id
                count_max = min(allowed[job_id], ROUND_ITEMS_MAX - count)
                if after := self._emit(held, count_max, ROUND_BYTES_MAX - byte_count):
                    moved.append((held, after))
                    count += _emitted(held.cursor, after)
                    began = held.job.files.start(held.cursor)
                    byte_count += after.byte_offset - began.byte_offset
            if moved:
                self._producer.flush()
                self._advance(moved)
        except BaseException:
            for held, _ in moved:
                held.close_reader()
            raise
        metrics.ITEMS_EXPANDED.inc(count)
        return count

    def _in_turn(self, allowed: Collection[UUID]) -> list[UUID]:
        """Begin behind the job that the last round ended with, or a few could fill every round."""
        job_ids = sorted(job_id for job_id in allowed if job_id in self._held.by_id)
        first = bisect_right(job_ids, self._last) if self._last else 0
        return job_ids[first:] + job_ids[:first]

    def _emit(self, held: LeasedJob, count_max: int, bytes_max: int) -> ExpansionCursor | None:
        """Send items of one file of a job; a job that fails is put aside, alone."""
        job, index = held.job, held.cursor.item_index
        left = job.files.left(index)
        count_max = min(count_max, job.total - index, count_max if left is None else left)
        if count_max <= 0:
            return None  # more was appended than we have heard of
        ref = job.ref_at(index)
        try:
            if held.reader is None:
                held.reader = ItemReader(self._objects, ref, job.files.start(held.cursor))
            held.used_s = self._clock.monotonic_s()
            items = held.reader.take(count_max, bytes_max)
            if not items:
                raise InputChangedError(item_index=index)
            after = held.reader.cursor
            emitted = self._without_copies(job, items) if job.deduplicates else items
            send_items(self._producer, ref, emitted, self._keys)
        except MillraceError as failure:
            held.close_reader()
            if not is_job_failure(failure):
                raise
            metrics.JOB_FAILURES.inc()
            _LOG.error(
                "a job cannot be expanded",
                extra={"job": ref.job_id.hex, "code": failure.code, "facts": failure.facts},
            )
            self._held.suspend(held)
            return None
        except BaseException:  # Postgres may be away: the reader is ahead of the cursor already
            held.close_reader()
            raise
        if len(items) == left:
            held.close_reader()  # the next file has its own
        if job.deduplicates:
            passed = held.cursor.copy_count + len(items) - len(emitted)
            return replace(after, copy_count=passed)
        return after

    def _without_copies(self, job: OpenJob, items: Sequence[Item]) -> list[Item]:
        with self._engine.begin() as connection:
            span = range(items[0].index, items[-1].index + 1)
            copies = find_copy_indexes(connection, job.ref.job_id, span)
        return [item for item in items if item.index not in copies]

    def _advance(self, moved: list[tuple[LeasedJob, ExpansionCursor]]) -> None:
        """Move the cursors in one transaction, in the order in which heartbeats lock leases.

        That of a job that was paused and resumed meanwhile stays: what was sent is void.
        """
        lost: list[LeasedJob] = []
        void: list[LeasedJob] = []
        with self._engine.begin() as connection:
            for held, after in sorted(moved, key=lambda move: move[0].lease.job_id):
                version = held.job.ref.version
                try:
                    if not advance_cursor(
                        connection, held.lease, held.cursor, after, version=version
                    ):
                        void.append(held)
                except LeaseLostError:
                    lost.append(held)
        for held, after in moved:
            if held in void:
                held.close_reader()
            else:
                held.cursor = after
        for held in lost:
            metrics.LEASES_LOST.inc()
            self._held.suspend(held)


def _emitted(before: ExpansionCursor, after: ExpansionCursor) -> int:
    """Return how many items went to the log between two cursors."""
    passed = after.copy_count - before.copy_count
    return after.item_index - before.item_index - passed
