"""Re-emits the items of a job that have no row, so that no lost record can stall a job.

The items were emitted before the expansion cursor and wait for no retry (rule 7 of delivery).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.clock import SystemClock
from core.errors import LeaseLostError
from jobs.expansion.cursors import fence_cursor
from jobs.expansion.emission import parse_item, send_items
from jobs.expansion.job_loads import OPEN, OpenJob, open_jobs
from jobs.input.input_files import InputFile, read_item_lines
from jobs.leasing import leases
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease
from jobs.ordering.ordered_files import OrderPositions
from jobs.recovery.retry_queue import last_failed_attempts
from jobs.tables.jobs import job_counters, job_cursors, jobs
from storage.crypto.data_keys import DataKeys
from storage.objects.object_store import ObjectStore
from storage.postgres.database_times import seconds
from topics.clients.producer import RecordProducer, RecordSender
from topics.clients.tracked_sends import TrackedSends
from topics.records.records import JobRef

_LOG: Final = logging.getLogger(__name__)

DOUBLINGS_MAX: Final = 6
"""Re-emissions without effect that double the limit."""

RANGE_ITEMS: Final = 50_000
"""Indexes of one query for missing items: it takes some tenths of a second in a job of any size."""

# Raw SQL, because `items` belongs to the results writer. Indexes without a row that wait for no
# retry and are no copies. Each table is limited to the same range: a plan that hashes a table would
# otherwise read all rows of the job for each range.
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


@dataclass(frozen=True, slots=True)
class ReEmitter:
    """Re-emits every item before the cursor that has no row and waits for no retry."""

    engine: sa.Engine
    objects: ObjectStore
    producer: RecordProducer
    leases: ActiveLeases
    expected_output: Callable[[JobRef], float] = lambda _: OUTPUT_TOKENS_PRIOR
    """Returns the expected output tokens of one sequence of a job."""

    def re_emit_job(self, job_id: UUID, due: sa.ColumnElement[bool]) -> int | None:
        """Re-emit one job; return how many items, or None if another replica holds the job.

        Uses the lease of this process if it expands the job. Otherwise it claims a lease while
        `due` holds, and releases it. Raises the job's failure (see `record_job_failure`),
        DeliveryError, and one of DATABASE_UNAVAILABLE.
        """
        lease = held = self.leases.lease_of(job_id)
        if lease is None:
            claimed = self.leases.claim(due, 1)
            if not claimed:
                return None  # another replica holds the job
            (lease,) = claimed
        try:
            count = self._re_emit_missing(lease)
        except LeaseLostError:
            _LOG.info("another replica emits again", extra={"job": lease.job_id.hex})
            count = 0
        except BaseException:  # whatever failed, no lease may outlive it
            if held is None:  # heartbeats would keep the job from the process that expands it
                self.leases.let_expire(lease)
            raise
        if held is None:
            self.leases.release(lease)
        return count

    def _re_emit_missing(self, lease: Lease) -> int:
        """Re-emit the missing items of one job; return how many. Raises LeaseLostError.

        1. Fence and read the cursor under the lock of the lease, and commit. 2. Find the missing
        indexes below that cursor without a lock, so that heartbeats pass. 3. Check the lease again,
        emit, and record it. From step 1 on only records that are not void move the cursor, so
        nothing is missing above it. An item that gets its row, or a job that gets another holder,
        after its range was read is emitted twice at worst; every reader accepts repeats.
        """
        with self.engine.begin() as connection:
            void_below = connection.scalar(
                sa.select(jobs.c.void_below).where(jobs.c.id == lease.job_id)
            )
            fence_cursor(connection, lease, void_below or 0)
            job = open_jobs(connection, [lease.job_id]).get(lease.job_id)
        if job is None:
            return 0
        if not job.has_space(self.producer):
            return 0  # its partition is unavailable; the job stays due
        indexes, failed = self._find_missing(job)
        with self.engine.begin() as connection:
            leases.lock_lease(connection, lease)
        sends = TrackedSends(self.producer)
        expected_output = self.expected_output(job.ref)
        count = re_emit_items(
            sends, self.objects, job, indexes, failed, expected_output=expected_output
        )
        if not sends.wait_unless_unavailable():
            return 0
        with self.engine.begin() as connection:
            record_re_emission(connection, lease, void_below or 0)
        return count

    def _find_missing(self, job: OpenJob) -> tuple[list[int], dict[int, int]]:
        """Return the indexes without a row, in order, and the last failed attempt of each."""
        indexes: list[int] = []
        failed: dict[int, int] = {}
        # One snapshot: an item that ends between the two queries has its row and is not retried.
        snapshots = self.engine.execution_options(isolation_level="REPEATABLE READ")
        for index_range in emitted_ranges(job):
            with snapshots.begin() as connection:
                found = missing_indexes(connection, job, index_range)
                failed |= last_failed_attempts(connection, job.ref.job_id, found)
            indexes += self._without_unemitted(job, index_range, found)
        return indexes, failed

    def _without_unemitted(self, job: OpenJob, span: range, found: list[int]) -> list[int]:
        """Leave out indexes of `span`, all of one file, whose position is behind the cursor."""
        file = job.files.file_at(span.start)
        if not found or not _is_partly_emitted(job, file):
            return found
        start, emitted = file.first_index, job.cursor.item_index - file.first_index
        in_file = range(span.start - start, span.stop - start)
        positions = OrderPositions(self.objects, file.order_key).read(in_file)
        return [index for index in found if positions[index - span.start] < emitted]


def emitted_ranges(job: OpenJob) -> Iterator[range]:
    """Yield ranges of indexes with all emitted items: each of one file, and of `RANGE_ITEMS`.

    Of an ordered file in expansion they are all its indexes: any of them may have been emitted.
    """
    emitted = job.cursor.item_index
    for file in job.files:
        if file.first_index >= emitted:
            return
        end = file.first_index + (job.files.count_left(file.first_index) or job.total)
        end = min(end, job.total)
        if not _is_partly_emitted(job, file):
            end = min(end, emitted)
        for first in range(file.first_index, end, RANGE_ITEMS):
            yield range(first, min(first + RANGE_ITEMS, end))


def _is_partly_emitted(job: OpenJob, file: InputFile) -> bool:
    """Whether the emitted items of an ordered file are not those of the lowest indexes."""
    count = job.files.count_left(file.first_index)
    end = job.total if count is None else file.first_index + count
    return bool(file.order_key) and job.cursor.item_index < end


def re_emit_due(job_ids: Sequence[UUID], stall_limit_s: float) -> sa.ColumnElement[bool]:
    """Return the condition on stalled jobs of `job_ids` that no replica re-emitted recently.

    The limit doubles with each re-emission without effect, whichever process made it.
    """
    stalled_since = sa.func.now() - seconds(stall_limit_s)
    doublings = sa.func.least(_re_emissions_without_effect(), DOUBLINGS_MAX)
    re_emitted_since = sa.func.now() - seconds(stall_limit_s * sa.func.power(2, doublings))
    return sa.and_(
        OPEN,
        # One array parameter: a statement is limited to 65,535 parameters.
        jobs.c.id == sa.any_(sa.literal(list(job_ids), sa.ARRAY(sa.Uuid))),
        sa.exists().where(
            job_cursors.c.job_id == jobs.c.id,
            sa.or_(
                job_cursors.c.repaired_at.is_(None), job_cursors.c.repaired_at <= re_emitted_since
            ),
        ),
        sa.exists().where(
            job_counters.c.job_id == jobs.c.id, job_counters.c.updated_at <= stalled_since
        ),
    )


def _re_emissions_without_effect() -> sa.ColumnElement[int]:
    """Return how often a job was re-emitted since an item of it last got its row."""
    has_progress = sa.exists().where(
        job_counters.c.job_id == job_cursors.c.job_id,
        job_counters.c.updated_at > job_cursors.c.repaired_at,
    )
    return sa.case((has_progress, 0), else_=job_cursors.c.repair_count)


def missing_indexes(connection: sa.Connection, job: OpenJob, span: range) -> list[int]:
    """Return the missing indexes of `span`, which is not empty, in order."""
    bound = {"first": span[0], "last": span[-1], "day": job.ref.day, "job_id": job.ref.job_id}
    return list(connection.scalars(MISSING_INDEXES, bound))


def re_emit_items(
    sender: RecordSender,
    objects: ObjectStore,
    job: OpenJob,
    indexes: Sequence[int],
    failed: Mapping[int, int],
    *,
    expected_output: float,
) -> int:
    """Send the items of `indexes` (in order), reading each file from its start; return how many.

    An item of `failed` gets the attempt number after that one; otherwise its next failure would
    count as a repeat. `expected_output` is the expected tokens of one sequence. Await the
    acknowledgements before relying on the items. Raises InputChangedError.
    """
    count, keys, models = 0, DataKeys(objects, SystemClock()), job.item_models()
    parse = parse_item if models is None else models.noting(parse_item)
    for file, file_indexes in job.files.group_by_file(indexes, lambda index: index):
        lines = read_item_lines(objects, file, file_indexes)
        groups = OrderPositions(objects, file.order_key) if file.order_key else None
        items = (
            parse(
                *line,
                job.ref.endpoint,
                expected_output,
                prefix_group=groups.group_of(line[0] - file.first_index) if groups else 0,
            )
            for line in lines
        )
        attempts = (
            msgspec.structs.replace(item, attempt=failed[item.index] + 1)
            if item.index in failed
            else item
            for item in items
        )
        ref = job.ref_at(file_indexes[0])
        count += send_items(sender, ref, attempts, keys, models=models)
    return count


def record_re_emission(connection: sa.Connection, lease: Lease, void_below: int) -> None:
    """Record that the missing items are on the log again. Raises LeaseLostError.

    They were emitted under a control version that was not void when `void_below` was read.
    """
    leases.lock_lease(connection, lease)
    connection.execute(
        sa.update(job_cursors)
        .where(job_cursors.c.job_id == lease.job_id)
        .values(
            repaired_at=sa.func.now(),
            repair_count=_re_emissions_without_effect() + 1,
            void_below=void_below,
        )
    )
