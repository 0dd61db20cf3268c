"""The jobs that this process expands, and one round over all of them."""

import logging
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from jobs import metrics
from jobs.copies import copies_between
from jobs.cursors import Cursor, advance
from jobs.expansion import InputChangedError, ItemReader, send_items
from jobs.held_leases import HeldLeases
from jobs.leases import Lease
from jobs.progress import EXPANSION_DUE, OpenJob, open_jobs
from jobs.tables import jobs
from jobs.windows import JobLoad
from storage.data_keys import DataKeys
from storage.objects import ObjectStore
from topics.producer import LogProducer
from topics.records import Item

_LOG = logging.getLogger(__name__)

ROUND_ITEMS_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 16 * 1024 * 1024
"""What one round sends before it waits for acknowledgements: bounds memory and repeats."""

FLUSH_TIMEOUT_S: Final = 60.0
_READERS_MAX: Final = 16  # each holds a connection of an object store and a block or two
_READER_IDLE_S_MAX: Final = 10.0  # a store may cut a reader that pauses for minutes


@dataclass(slots=True, eq=False)
class _Held:
    """A job in expansion. `reader` may be ahead of `cursor` only within a round."""

    lease: Lease
    job: OpenJob
    cursor: Cursor
    reader: ItemReader | None = None
    used_s: float = field(default=0.0)

    def close_reader(self) -> None:
        if self.reader is not None:
            self.reader.close()
            self.reader = None


class Expander:
    """Emits items of held jobs as far as they are allowed. Used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: LogProducer,
        leases: HeldLeases,
        clock: Clock,
    ) -> None:
        """Hold nothing yet."""
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._leases = leases
        self._clock = clock
        self._keys = DataKeys(objects, clock)
        self._held: dict[UUID, _Held] = {}
        self._last: UUID | None = None

    @property
    def held(self) -> frozenset[UUID]:
        """Jobs in expansion."""
        return frozenset(self._held)

    def hold(self, wanted: Sequence[UUID], count_max: int) -> None:
        """Hold the jobs `wanted`, most wanted first, as far as no other process has them.

        A job that is not wanted leaves only when its slot is needed for one that was claimed.
        """
        self._claim([job_id for job_id in wanted if job_id not in self._held])
        places = {job_id: place for place, job_id in enumerate(wanted)}
        by_want = sorted(self._held, key=lambda job_id: places.get(job_id, len(places)))
        surplus = [self._held[job_id] for job_id in by_want[count_max:]]
        for held in surplus:
            self._drop(held)
        self._leases.release(*(held.lease for held in surplus))

    def round(self, allowed: Mapping[UUID, int]) -> int:
        """Emit what is `allowed`, bounded by a round's size; return how many items.

        Raises DeliveryError, and `DATABASE_AWAY`: then the cursors stand where they stood.
        """
        moved: list[tuple[_Held, Cursor]] = []
        count, byte_count = 0, 0
        try:
            for job_id in self._in_turn(allowed):
                if count >= ROUND_ITEMS_MAX or byte_count >= ROUND_BYTES_MAX:
                    break
                held = self._held[job_id]
                self._last = job_id
                count_max = min(allowed[job_id], ROUND_ITEMS_MAX - count)
                if after := self._emit(held, count_max, ROUND_BYTES_MAX - byte_count):
                    moved.append((held, after))
                    count += _emitted(held.cursor, after)
                    began = held.job.files.start(held.cursor)
                    byte_count += after.byte_offset - began.byte_offset
            if moved:
                self._producer.flush(FLUSH_TIMEOUT_S)
                self._advance(moved)
        except BaseException:
            for held, _ in moved:
                held.close_reader()
            raise
        metrics.ITEMS_EXPANDED.inc(count)
        return count

    def refresh(self, loads: Sequence[JobLoad]) -> None:
        """Read anew what owners have changed of the jobs that are held; `loads` is of this round.

        Raises one of `DATABASE_AWAY`.
        """
        versions = {load.job_id: load.version for load in loads}
        changed = [
            job_id
            for job_id, held in self._held.items()
            if versions.get(job_id, held.job.ref.version) != held.job.ref.version
        ]
        if not changed:
            return
        with self._engine.begin() as connection:
            found = open_jobs(connection, changed)
        for job_id in changed:
            self._held[job_id].close_reader()
            if job := found.get(job_id):
                self._held[job_id].job = job

    def tidy(self, open_ids: Collection[UUID]) -> None:
        """Let go of jobs that are expanded, closed or lost, and of readers that rest."""
        for job_id, held in list(self._held.items()):
            if not self._leases.holds(held.lease):
                self._drop(held)
            elif job_id not in open_ids or held.cursor.item_index >= held.job.total:
                self._drop(held)
                self._leases.release(held.lease)
        oldest_s = self._clock.monotonic_s() - _READER_IDLE_S_MAX
        reading = [held for held in self._held.values() if held.reader is not None]
        reading.sort(key=lambda held: held.used_s, reverse=True)
        for place, held in enumerate(reading):
            if place >= _READERS_MAX or held.used_s < oldest_s:
                held.close_reader()

    def close(self) -> None:
        """Close what is open; the leases are given back by their owner."""
        for held in self._held.values():
            held.close_reader()

    def _claim(self, job_ids: Sequence[UUID]) -> None:
        if not job_ids:
            return
        where = sa.and_(EXPANSION_DUE, jobs.c.id.in_(job_ids))
        claimed = self._leases.claim(where, len(job_ids))
        if not claimed:
            return
        try:
            with self._engine.begin() as connection:
                found = open_jobs(connection, [lease.job_id for lease in claimed])
        except BaseException:
            for lease in claimed:  # or heartbeats would keep from everyone what nobody expands
                self._leases.put_aside(lease)
            raise
        for lease in claimed:
            if job := found.get(lease.job_id):
                self._held[lease.job_id] = _Held(lease, job, job.cursor)
            else:
                self._leases.release(lease)  # closed a moment ago

    def _in_turn(self, allowed: Collection[UUID]) -> list[UUID]:
        """Begin behind the job that the last round ended with, or a few could fill every round."""
        job_ids = sorted(job_id for job_id in allowed if job_id in self._held)
        first = bisect_right(job_ids, self._last) if self._last else 0
        return job_ids[first:] + job_ids[:first]

    def _emit(self, held: _Held, count_max: int, bytes_max: int) -> Cursor | None:
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
            if failure.disposition is Disposition.CRASH:
                raise
            self._put_aside(held, failure)
            return None
        if len(items) == left:
            held.close_reader()  # the next file has its own
        if job.deduplicates:
            passed = held.cursor.copy_count + len(items) - len(emitted)
            return replace(after, copy_count=passed)
        return after

    def _without_copies(self, job: OpenJob, items: Sequence[Item]) -> list[Item]:
        with self._engine.begin() as connection:
            span = range(items[0].index, items[-1].index + 1)
            copies = copies_between(connection, job.ref.job_id, span)
        return [item for item in items if item.index not in copies]

    def _advance(self, moved: list[tuple[_Held, Cursor]]) -> None:
        """Move the cursors in one transaction, in the order in which heartbeats lock leases.

        That of a job that was paused and resumed meanwhile stays: what was sent is void.
        """
        lost: list[_Held] = []
        void: list[_Held] = []
        with self._engine.begin() as connection:
            for held, after in sorted(moved, key=lambda move: move[0].lease.job_id):
                version = held.job.ref.version
                try:
                    if not advance(connection, held.lease, held.cursor, after, version=version):
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
            self._leases.put_aside(held.lease)
            self._drop(held)

    def _put_aside(self, held: _Held, failure: MillraceError) -> None:
        metrics.JOB_FAILURES.inc()
        _LOG.error(
            "a job cannot be expanded",
            extra={"job": held.lease.job_id.hex, "code": failure.code, "facts": failure.facts},
        )
        self._leases.put_aside(held.lease)
        self._drop(held)

    def _drop(self, held: _Held) -> None:
        held.close_reader()
        self._held.pop(held.lease.job_id, None)


def _emitted(before: Cursor, after: Cursor) -> int:
    """Return how many items went to the log between two cursors."""
    passed = after.copy_count - before.copy_count
    return after.item_index - before.item_index - passed
