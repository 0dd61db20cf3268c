"""The expander: emits items of the leased jobs and moves their cursors, one round at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.clock import Clock
from core.errors import LeaseLostError, MillraceError
from core.stages import Stage
from core.tenant_claims import PLAIN_CLAIM
from jobs import metrics
from jobs.expansion.cursors import ExpansionCursor, advance_cursor
from jobs.expansion.emission import ItemReader, record_job_failure, send_items
from jobs.expansion.job_loads import JOB_CLASS, OpenJob
from jobs.expansion.known_claims import ClaimOf
from jobs.expansion.leased_jobs import LeasedJob, LeasedJobs
from jobs.expansion.reader_slots import WAIT_S_MAX, ReaderSlots, wait_for_opening
from jobs.expansion.windows import rotate
from jobs.input.line_reader import InputChangedError, file_lines
from jobs.leasing.job_backoff import JobBackoff
from jobs.ordering.last_items import longest_last_items_first
from jobs.ordering.ordered_files import restore_lines
from jobs.store.copies import find_copy_indexes
from storage.crypto.data_keys import DataKeys
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore
from topics.clients.producer import RecordProducer
from topics.clients.tracked_sends import TrackedSends
from topics.metrics import STAGE_SECONDS
from topics.records.records import Item, JobRef

ROUND_ITEMS_MAX: Final = 10_000
ROUND_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of one round before it waits for acknowledgements; bounds memory and repeats."""

_GATEWAY_SECONDS: Final = STAGE_SECONDS.labels(Stage.GATEWAY, JOB_CLASS)
_INTAKE_SECONDS: Final = STAGE_SECONDS.labels(Stage.INTAKE, JOB_CLASS)

_KEYS_MAX: Final = 10_000  # as many as jobs in expansion: an evicted key would be loaded again


@dataclass(frozen=True, slots=True)
class _CursorMove:
    """The move of a job's cursor behind items that were sent; due when they are acknowledged."""

    leased: LeasedJob
    before: ExpansionCursor
    after: ExpansionCursor
    version: int  # of the job's control state
    sends: TrackedSends


@dataclass(slots=True)
class Expander:
    """Emits items of leased jobs up to their allowances. Used by one thread.

    Each job waits for its own records. A job whose partition is unavailable emits nothing more, and
    its cursor moves when the partition has returned; other jobs go on. A job whose file the object
    store does not open waits, too: for `WAIT_S_MAX` in the round, then in its slot, and after a
    failure without a lease.
    """

    engine: sa.Engine
    objects: ObjectStore
    producer: RecordProducer
    leased_jobs: LeasedJobs  # the jobs and the cursor of each
    clock: Clock
    expected_output: Callable[[JobRef], float] = lambda _: OUTPUT_TOKENS_PRIOR
    """Returns the expected tokens of one sequence of a job."""

    tenant_claim: ClaimOf = lambda _tenant_id, _pool: PLAIN_CLAIM
    """Returns the claim of a tenant on a pool now; that of a leased job is as old as its lease."""

    backoff: JobBackoff = field(default_factory=JobBackoff)
    slots: ReaderSlots = field(default_factory=ReaderSlots)
    _keys: DataKeys = field(init=False)
    _open_until_s: float = 0.0
    _unacknowledged: dict[UUID, _CursorMove] = field(default_factory=dict)  # by job
    _last_job_id: UUID | None = None

    def __post_init__(self) -> None:
        self._keys = DataKeys(self.objects, self.clock, cached_max=_KEYS_MAX)

    def run_once(self, allowed: Mapping[UUID, int]) -> int:
        """Emit the `allowed` number of items of each job, within a round's limits; return how many.

        Raises DeliveryError and `DATABASE_UNAVAILABLE`; the cursors have not moved then.
        """
        self._move_acknowledged()
        self._adopt_opened()
        # While files are being opened for longer than a round, rounds do not wait for others.
        wait_s = 0.0 if self.slots.busy_count else WAIT_S_MAX
        self._open_until_s = self.clock.monotonic_s() + wait_s
        moves: list[_CursorMove] = []
        count, byte_count = 0, 0
        open_jobs = allowed.keys() & self.leased_jobs.by_id.keys() - self._unacknowledged.keys()
        try:
            for job_id in rotate(open_jobs, self._last_job_id):
                if count >= ROUND_ITEMS_MAX or byte_count >= ROUND_BYTES_MAX:
                    break
                leased = self.leased_jobs.by_id[job_id]
                self._last_job_id = job_id
                if not leased.job.has_space(self.producer):
                    continue
                count_max = min(allowed[job_id], ROUND_ITEMS_MAX - count)
                if move := self._emit(leased, count_max, ROUND_BYTES_MAX - byte_count):
                    moves.append(move)
                    count += _emitted_count(move.before, move.after)
                    start = leased.job.files.reading_start(move.before)
                    byte_count += move.after.byte_offset - start.byte_offset
            for move in moves:
                move.sends.wait_unless_unavailable()
        except BaseException:  # whatever failed: the readers are ahead of the cursors
            for move in moves:
                move.leased.close_reader()
            raise
        self._unacknowledged |= {move.leased.lease.job_id: move for move in moves}
        self._move_acknowledged()
        metrics.ITEMS_EXPANDED.inc(count)
        return count

    def _move_acknowledged(self) -> None:
        """Move the cursors of jobs whose records are acknowledged; forget those of lost jobs."""
        by_id = self.leased_jobs.by_id
        self._unacknowledged = {
            job_id: move
            for job_id, move in self._unacknowledged.items()
            if by_id.get(job_id) is move.leased
        }
        moves = [move for move in self._unacknowledged.values() if move.sends.is_acknowledged]
        if not moves:
            return
        for move in moves:
            del self._unacknowledged[move.leased.lease.job_id]
        try:
            self._advance(moves)
        except BaseException:  # whatever failed: the readers are ahead of the cursors
            for move in moves:
                move.leased.close_reader()
            raise

    def _emit(self, leased: LeasedJob, count_max: int, bytes_max: int) -> _CursorMove | None:
        """Send items of one file of a job. A job failure suspends only that job."""
        job, index = leased.job, leased.cursor.item_index
        left_in_file = job.files.count_left(index)
        count_max = min(count_max, job.total - index)
        if left_in_file is not None:
            count_max = min(count_max, left_in_file)
        if count_max <= 0:
            return None  # a file was appended that this process has not loaded yet
        ref = job.ref_at(index)
        claim = self.tenant_claim(ref.tenant_id, ref.pool)
        if claim != (ref.weight, ref.reserved, ref.tenant_class):
            ref = msgspec.structs.replace(ref, **claim._asdict())
        sends = TrackedSends(self.producer)
        try:
            reader = self._opened_reader(leased, ref)
            if reader is None:
                return None  # the store is slow
            leased.used_s = self.clock.monotonic_s()
            expected = self.expected_output(ref)
            items = reader.read_items(count_max, bytes_max, expected)
            if not items:
                raise InputChangedError(item_index=index)
            after = reader.cursor
            positions = None
            if job.files.file_at(index).order_key:
                items = longest_last_items_first(items, index, job.total)
                positions = {item.index: place for place, item in enumerate(items, index)}
            originals = self._without_copies(job, items) if job.deduplicates else items
            send_items(sends, ref, originals, self._keys, positions, reader.models)
            self._observe_stages(job, index)
        except MillraceError as failure:
            self._suspend_failed(leased, failure)
            return None
        except BaseException:  # such as Postgres unavailable: the reader is ahead of the cursor
            leased.close_reader()
            raise
        if len(items) == left_in_file:
            leased.close_reader()  # the next file needs its own reader
        if job.deduplicates:
            copy_count = leased.cursor.copy_count + len(items) - len(originals)
            after = replace(after, copy_count=copy_count)
        return _CursorMove(leased, leased.cursor, after, job.ref.version, sends)

    def _observe_stages(self, job: OpenJob, item_index: int) -> None:
        """Count the time until items are on the log, and the time before, once for each job."""
        _INTAKE_SECONDS.observe(max(0.0, self.clock.wall_s() - job.ready_s))
        if not item_index:
            _GATEWAY_SECONDS.observe(max(0.0, job.ready_s - job.accepted_s))

    def _opened_reader(self, leased: LeasedJob, ref: JobRef) -> ItemReader | None:
        """Return the reader of a job; None while it is being opened, or waits for a slot.

        Raises what opening raised.
        """
        if leased.reader is not None:
            if not ref.key_name or self._keys.cached(ref.key_name):
                return leased.reader
            leased.close_reader()  # the key is loaded as a file is opened: in a slot
        if leased.opening is None:
            start = leased.job.files.reading_start(leased.cursor)
            leased.opening = self.slots.start(
                partial(self._open_reader, leased.job, ref, start),
                has_failed=self.backoff.has_failed(ref.job_id),
            )
        left_s = self._open_until_s - self.clock.monotonic_s()
        if leased.opening is None or not wait_for_opening(leased.opening, left_s):
            return None
        self._adopt(leased)
        return leased.reader

    def _open_reader(self, job: OpenJob, ref: JobRef, start: ExpansionCursor) -> ItemReader:
        """Load the key of a job, if it has one, and open its file. Called in a slot's thread."""
        file = job.files.file_at(start.item_index)
        if ref.key_name:
            self._keys.load_or_create(ref.key_name)
        place = (file.order_key, file.first_index)
        open_file = partial(ItemReader, self.objects, ref, start, *place, job.item_models())
        try:
            return open_file()
        except ObjectNotFoundError:
            if not file.order_key:
                raise
            # The job had ended before Postgres was restored.
            read = partial(file_lines, self.objects, file.key)
            restore_lines(self.objects, file.order_key, read)
            return open_file()

    def _adopt_opened(self) -> None:
        """Adopt the readers that were opened since the last round. A failure suspends its job."""
        for leased in list(self.leased_jobs.by_id.values()):
            if leased.opening is not None and leased.opening.done():
                try:
                    self._adopt(leased)
                except MillraceError as failure:
                    self._suspend_failed(leased, failure)

    def _adopt(self, leased: LeasedJob) -> None:
        """Adopt an opened reader. Raises what opening raised."""
        opening, leased.opening = leased.opening, None
        if opening is not None:
            leased.reader = opening.result()
            leased.used_s = self.clock.monotonic_s()
            self.backoff.reset(leased.lease.job_id)

    def _suspend_failed(self, leased: LeasedJob, failure: MillraceError) -> None:
        """Suspend a job after its own failure; raise any other (see `record_job_failure`)."""
        job_id = leased.lease.job_id
        leased.close_reader()
        record_job_failure(job_id, failure, "a job cannot be expanded")
        self.leased_jobs.suspend(leased, self.backoff.next_s(job_id))

    def _without_copies(self, job: OpenJob, items: Sequence[Item]) -> list[Item]:
        with self.engine.begin() as connection:
            copies = find_copy_indexes(connection, job.ref.job_id, [item.index for item in items])
        return [item for item in items if item.index not in copies]

    def _advance(self, moves: Sequence[_CursorMove]) -> None:
        """Move the cursors in one transaction, in the order in which heartbeats lock leases.

        The cursor of a job that was paused and resumed in the meantime stays: its records are void.
        """
        lost: list[LeasedJob] = []
        void: list[LeasedJob] = []
        with self.engine.begin() as connection:
            for move in sorted(moves, key=lambda move: move.leased.lease.job_id):
                leased = move.leased
                try:
                    if not advance_cursor(
                        connection, leased.lease, move.before, move.after, version=move.version
                    ):
                        void.append(leased)
                except LeaseLostError:
                    lost.append(leased)
        for move in moves:
            if move.leased in void:
                move.leased.close_reader()
            else:
                move.leased.cursor = move.after
        for leased in lost:
            metrics.LEASES_LOST.inc()
            self.leased_jobs.suspend(leased)


def _emitted_count(before: ExpansionCursor, after: ExpansionCursor) -> int:
    """Return how many items were sent to the log between two cursors."""
    copies = after.copy_count - before.copy_count
    return after.item_index - before.item_index - copies
