"""Emit the lost items of a job again (rule 7 of delivery): no lost record can hang a job."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.clock import SystemClock
from core.errors import LeaseLostError, MillraceError
from jobs import metrics
from jobs.expansion.cursors import fence_cursor
from jobs.expansion.emission import parse_item, send_items
from jobs.expansion.job_failures import is_job_failure
from jobs.expansion.job_loads import OPEN, OpenJob, open_jobs
from jobs.input.input_files import InputFile
from jobs.input.line_reader import input_lines
from jobs.leasing import leases
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease, lock_lease
from jobs.recovery.retry_queue import last_failed_attempts
from jobs.settings import LINE_BYTES_CEILING
from jobs.tables.jobs import jobs
from jobs.tables.progress import job_counters, job_cursors
from storage.crypto.data_keys import DataKeys
from storage.objects.object_store import ObjectStore
from storage.postgres.intervals import seconds
from topics.clients.producer import LogProducer, Sender

RANGE_ITEMS: Final = 50_000
"""Indexes of one look for what is missing: some tenths of a second, however large the job is."""

# Rooms meet in tables: these rows are the results writer's. Indexes without one, that wait for no
# retry and are copies of no other: those are not lost. Each table is held to the same span, or a
# plan that hashes one would read all rows of the job for each look.
MISSING_INDEXES: Final = sa.text(
    """
    SELECT wanted.item_index
    FROM generate_series(CAST(:first AS int), CAST(:last AS int)) AS wanted (item_index)
    WHERE NOT EXISTS (
        SELECT FROM items
        WHERE items.job_day = :day
            AND items.job_id = :job_id
            AND items.item_index BETWEEN :first AND :last
            AND items.item_index = wanted.item_index
    ) AND NOT EXISTS (
        SELECT FROM item_retries
        WHERE item_retries.job_id = :job_id
            AND item_retries.item_index BETWEEN :first AND :last
            AND item_retries.item_index = wanted.item_index
    ) AND NOT EXISTS (
        SELECT FROM item_copies
        WHERE item_copies.job_id = :job_id
            AND item_copies.item_index BETWEEN :first AND :last
            AND item_copies.item_index = wanted.item_index
    )
    ORDER BY wanted.item_index
    """
).bindparams(sa.bindparam("job_id", type_=sa.Uuid))


def re_emit_due(job_ids: Sequence[UUID], stall_limit_s: float) -> sa.ColumnElement[bool]:
    """Return the condition on those of `job_ids` to repair, so that replicas take turns."""
    long_ago = sa.func.now() - seconds(stall_limit_s)
    return sa.and_(
        OPEN,
        # One parameter: a statement has room for 65,535.
        jobs.c.id == sa.any_(sa.literal(list(job_ids), sa.ARRAY(sa.Uuid))),
        sa.exists().where(
            job_cursors.c.job_id == jobs.c.id,
            sa.or_(job_cursors.c.repaired_at.is_(None), job_cursors.c.repaired_at <= long_ago),
        ),
        sa.exists().where(
            job_counters.c.job_id == jobs.c.id, job_counters.c.updated_at <= long_ago
        ),
    )


def index_ranges(emitted: int) -> Iterator[range]:
    """Cut the indexes below a cursor into spans for one look each."""
    for first in range(0, emitted, RANGE_ITEMS):
        yield range(first, min(first + RANGE_ITEMS, emitted))


def missing_indexes(connection: sa.Connection, job: OpenJob, span: range) -> list[int]:
    """Return the indexes in `span`, not an empty one, that have no row, in order."""
    bound = {"first": span[0], "last": span[-1], "day": job.ref.day, "job_id": job.ref.job_id}
    return list(connection.scalars(MISSING_INDEXES, bound))


def re_emit_items(
    sender: Sender,
    objects: ObjectStore,
    job: OpenJob,
    indexes: Sequence[int],
    failed: Mapping[int, int],
) -> int:
    """Send the items of `indexes` (in order), each file read from its start.

    An item of `failed` goes on behind that attempt, or its next failure would count as a repeat.
    Returns their number. Flush before relying on them. Raises InputChangedError.
    """
    count, keys = 0, DataKeys(objects, SystemClock())
    for file, its_indexes in job.files.by_file(indexes, lambda index: index):
        lines = read_item_lines(objects, file, its_indexes)
        items = (parse_item(*line, job.ref.endpoint) for line in lines)
        again = (
            msgspec.structs.replace(item, attempt=failed[item.index] + 1)
            if item.index in failed
            else item
            for item in items
        )
        count += send_items(sender, job.ref_at(its_indexes[0]), again, keys)
    return count


def record_re_emission(connection: sa.Connection, lease: Lease, void_below: int) -> None:
    """Note that what was missing is on the log again. Raises LeaseLostError.

    It was emitted under a version that was not void when `void_below` was read.
    """
    leases.lock_lease(connection, lease)
    connection.execute(
        sa.update(job_cursors)
        .where(job_cursors.c.job_id == lease.job_id)
        .values(repaired_at=sa.func.now(), void_below=void_below)
    )


def read_item_lines(
    objects: ObjectStore,
    file: InputFile,
    indexes: Sequence[int],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield index, offset and line of the items of `indexes` (in order, at least one).

    The file is read from its start. A line is None where validation would have taken none. Asked
    before each block, `is_over` ends it.
    """
    wanted = iter(indexes)
    next_wanted: int | None = next(wanted)
    with objects.read(file.key) as blocks, suppress(_IsOver):
        lines = input_lines(_until(blocks, is_over), line_bytes_max=LINE_BYTES_CEILING)
        for index, (_, offset, line) in enumerate(lines, file.first_index):
            if index == next_wanted:
                yield index, offset, line
                next_wanted = next(wanted, None)
                if next_wanted is None:
                    return


class _IsOver(Exception):  # noqa: N818  no failure
    """Unlike an end of blocks it makes no line of what came of the last one."""


def _until(blocks: Iterable[bytes], is_over: Callable[[], bool]) -> Iterator[bytes]:
    for block in blocks:
        yield block
        if is_over():
            raise _IsOver


_LOG: Final = logging.getLogger(__name__)


class ReEmitter:
    """Emits every index below the cursor that has no row and waits for no retry."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: LogProducer,
        leases: ActiveLeases,
    ) -> None:
        """`producer` is of this thread alone: a flush waits for what others send, too."""
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._leases = leases

    def emit(self, job_id: UUID, due: sa.ColumnElement[bool]) -> int | None:
        """Emit for one job; return how many items, None where another replica has it.

        Uses the lease of this process when it expands the job, else takes one for the moment while
        `due` holds. Raises what is wrong with this job (see `record_job_failure`), DeliveryError, and one of
        DATABASE_AWAY.
        """
        lease = held = self._leases.lease_of(job_id)
        if lease is None:
            claimed = self._leases.claim(due, 1)
            if not claimed:
                return None  # another replica has it
            (lease,) = claimed
        try:
            count = self._emit(lease)
        except BaseException:
            if held is None:  # or heartbeats would keep the job from whoever expands it
                self._leases.let_expire(lease)
            raise
        if held is None:
            self._leases.release(lease)
        return count

    def _emit(self, lease: Lease) -> int:
        try:
            return self._emit_missing(lease)
        except LeaseLostError:
            _LOG.info("another replica emits again", extra={"job": lease.job_id.hex})
        return 0

    def _emit_missing(self, lease: Lease) -> int:
        """Emit what one job lacks; return how many items. Raises LeaseLostError.

        1. Fence and read the cursor, under the lock of the lease, and commit. 2. Look for what is
        missing below that cursor, without a lock: heartbeats must pass. 3. Require the lease once
        more, emit, and note it. From 1 on only records that are not void move the cursor, so
        nothing is missing above it. What gets its row, or another holder, behind a look is emitted
        twice at worst, which every reader takes.
        """
        with self._engine.begin() as connection:
            void_below = connection.scalar(
                sa.select(jobs.c.void_below).where(jobs.c.id == lease.job_id)
            )
            fence_cursor(connection, lease, void_below or 0)
            job = open_jobs(connection, [lease.job_id]).get(lease.job_id)
        if job is None:
            return 0
        indexes, failed = self._missing(job)
        with self._engine.begin() as connection:
            lock_lease(connection, lease)
        count = re_emit_items(self._producer, self._objects, job, indexes, failed)
        self._producer.flush()
        with self._engine.begin() as connection:
            record_re_emission(connection, lease, void_below or 0)
        return count

    def _missing(self, job: OpenJob) -> tuple[list[int], dict[int, int]]:
        """Return the indexes without a row, in order, and the last failed attempt of each."""
        indexes: list[int] = []
        failed: dict[int, int] = {}
        # One snapshot: an item that ends between the two has its row, and is not tried once more.
        snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        for span in index_ranges(job.cursor.item_index):
            with snapshots.begin() as connection:
                found = missing_indexes(connection, job, span)
                failed |= last_failed_attempts(connection, job.ref.job_id, found)
            indexes += found
        return indexes, failed


def record_job_failure(job_id: UUID, failure: MillraceError) -> None:
    """Count and log what is wrong with one job; raise what is wrong with this process."""
    if not is_job_failure(failure):
        raise failure
    metrics.JOB_FAILURES.inc()
    facts = {"job": job_id.hex, "code": failure.code, "facts": failure.facts}
    _LOG.error("a job cannot be emitted", extra=facts)
