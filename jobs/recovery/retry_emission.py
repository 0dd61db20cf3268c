"""Emits items whose retry is due.

    claim ─► read their lines ─► send ─► flush ─► delete ─► commit

A crash between two steps sends the items again under the same attempt number; the results writer
counts each attempt once.
"""

import logging
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.emission import parse_item, record_job_failure, send_items
from jobs.expansion.job_loads import OpenJob, open_jobs
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.windows import rotate
from jobs.input.input_files import InputFile, read_item_lines
from jobs.input.line_reader import InputChangedError, read_lines_at
from jobs.leasing.job_backoff import JobBackoff
from jobs.recovery.retry_policy import RetryBudgetRules, share_budget
from jobs.recovery.retry_queue import (
    DueJob,
    Retry,
    claim_retries,
    create_missing_budgets,
    delete_of_ended_jobs,
    delete_retries,
    find_due_jobs,
    has_waiting_retries,
    lock_budget,
    lock_void_versions,
    spend_budget,
)
from jobs.store.transaction_keepalive import IDLE_S_MAX, LIMIT_IDLE_TIME, wait_with_keepalive
from storage.crypto.data_keys import DataKeys
from storage.objects.errors import ObjectStoreUnavailableError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import autocommit
from topics.clients.producer import RecordProducer
from topics.clients.tracked_sends import TrackedSends
from topics.records.records import Item, JobRef

_LOG = logging.getLogger(__name__)

_ROUND_MAX: Final = 500
"""Retries of one transaction; all of them are in memory with their bodies."""

_READ_MAX: Final = 100
_SEND_S_MAX: Final = 20.0
"""A round starts no read after this time: the last read must end before Postgres ends the idle
transaction."""

_ROUND_S_MAX: Final = IDLE_S_MAX - 5.0
"""Postgres may have ended the transaction of a longer round, so that round neither sends nor writes
anything more."""

_CLEANUP_INTERVAL_S: Final = 5.0


@dataclass(slots=True)
class RetryEmitter:
    """Emits due retries within the budget of their pool. Any number of processes may run it."""

    engine: sa.Engine
    objects: ObjectStore
    producer: RecordProducer
    rules: RetryBudgetRules
    clock: Clock
    fraction: Callable[[], float] = random.random
    """Returns a uniform random number from [0, 1), which decides who gets remainders."""

    backoff: JobBackoff = field(default_factory=JobBackoff)
    """Of jobs whose file cannot be read."""

    expected_output: Callable[[JobRef], float] = lambda _: OUTPUT_TOKENS_PRIOR
    """Returns the expected output tokens of one sequence of a job."""

    _keys: DataKeys = field(init=False)
    _cleanup_at_s: float = 0.0
    _last_job: dict[str, UUID] = field(default_factory=dict)  # by pool: the job that was read last

    def __post_init__(self) -> None:
        self._keys = DataKeys(self.objects, self.clock)

    def run_once(self, capacities: PoolCapacities) -> None:
        """Emit the due retries of the available pools.

        Raises DeliveryError, and one of DATABASE_UNAVAILABLE; the claimed retries are due again
        then.
        """
        pools = capacities.pools()
        with autocommit(self.engine) as connection:
            if not has_waiting_retries(connection):
                return
        with self.engine.begin() as connection:
            due = [job for job in find_due_jobs(connection, _ROUND_MAX) if job.pool in pools]
            create_missing_budgets(connection, {job.pool for job in due})
        by_pool: defaultdict[str, list[DueJob]] = defaultdict(list)
        now_s = self.clock.monotonic_s()
        for job in due:
            if not self.backoff.is_waiting(job.job_id, now_s):
                by_pool[job.pool].append(job)
        for pool, pool_jobs in by_pool.items():
            count = self._emit_pool(pool, pools[pool].items_per_s, pool_jobs)
            metrics.RETRIES_EMITTED.inc(count)
        self._clean_up()

    def _emit_pool(self, pool: str, items_per_s: float, due: Sequence[DueJob]) -> int:
        """Emit for one pool in one transaction; return how many, 0 if it took too long."""
        with self.engine.connect() as connection:
            count = self._emit(connection, pool, items_per_s, due)
            if count is None:
                connection.invalidate()
                _LOG.warning("a round of retries took too long", extra={"pool": pool})
                return 0
            connection.commit()
        return count

    def _emit(
        self, connection: sa.Connection, pool: str, items_per_s: float, due: Sequence[DueJob]
    ) -> int | None:
        """Return how many were sent; commit, or all are sent again. None: it took too long."""
        connection.execute(LIMIT_IDLE_TIME)
        tokens = lock_budget(connection, pool, items_per_s, self.rules)
        if tokens is None:
            return 0
        count_max = min(int(tokens), _ROUND_MAX)
        if sum(job.due_count for job in due) > count_max:
            metrics.RETRIES_DELAYED.inc()
        demand: defaultdict[UUID, dict[UUID, int]] = defaultdict(dict)
        for due_job in due:
            demand[due_job.tenant_id][due_job.job_id] = due_job.due_count
        shares = share_budget(count_max, demand, self.fraction)
        done: list[tuple[UUID, TrackedSends, list[Retry]]] = []
        count = 0
        started_s = self.clock.monotonic_s()
        loaded = open_jobs(connection, [job_id for job_id, share in shares.items() if share])
        # Jobs that failed last: each may wait for the store until the others' time is up.
        ordered = sorted(rotate(loaded, self._last_job.get(pool)), key=self.backoff.has_failed)
        for job_id in ordered:
            if self._has_elapsed(started_s, _SEND_S_MAX):
                break
            job, self._last_job[pool] = loaded[job_id], job_id
            if not job.has_space(self.producer):
                continue  # its partition is unavailable
            sends = TrackedSends(self.producer)
            claimed = claim_retries(connection, job_id, job.ref.day, shares[job_id])
            sent = self._send(job, sends, [r for r in claimed if not r.has_ended], started_s)
            count += len(sent)
            done.append((job_id, sends, [*sent, *(r for r in claimed if r.has_ended)]))
        if self._has_elapsed(started_s, _ROUND_S_MAX):
            return None
        done = [each for each in done if wait_with_keepalive(connection, each[1])]
        void_below = lock_void_versions(connection, [job_id for job_id, _, _ in done])
        for job_id, _, retries in done:
            # Keep retries whose records a pause made void: the resume skips items with a retry.
            if void_below.get(job_id, 0) <= loaded[job_id].ref.version:
                delete_retries(connection, job_id, retries)
        spend_budget(connection, pool, tokens, count)
        return count

    def _has_elapsed(self, started_s: float, limit_s: float) -> bool:
        return self.clock.monotonic_s() - started_s >= limit_s

    def _send(
        self, job: OpenJob, sends: TrackedSends, retries: Sequence[Retry], started_s: float
    ) -> list[Retry]:
        """Send items of a job until the time is up; return the retries that were sent.

        After a job failure only that job backs off.
        """
        is_stopped = partial(self._has_elapsed, started_s, _SEND_S_MAX)
        sent: list[Retry] = []
        unreadable = 0
        models = job.item_models()
        parse_line = parse_item if models is None else models.noting(parse_item)
        try:
            for file, ref, group in _read_groups(job, retries):
                parse = partial(
                    parse_line, endpoint=ref.endpoint, expected_output=self.expected_output(ref)
                )
                items = read_retried_items(self.objects, file, group, parse, is_stopped)
                if self._has_elapsed(started_s, _ROUND_S_MAX):
                    raise ObjectStoreUnavailableError(key=file.key)  # one read took that long
                found = [retry for retry in group if retry.item_index in items]
                attempts = (
                    msgspec.structs.replace(items[retry.item_index], attempt=retry.attempt)
                    for retry in found
                )
                send_items(sends, ref, attempts, self._keys, models=models)
                sent += found
                if is_stopped():
                    break
                unreadable += len(group) - len(found)
            if unreadable:  # last: readable items do not wait for unreadable ones
                raise InputChangedError(items=unreadable)
            self.backoff.reset(job.ref.job_id)
        except MillraceError as failure:
            record_job_failure(job.ref.job_id, failure, "retries wait")
            self.backoff.next_s(job.ref.job_id, self.clock.monotonic_s())
        return sent

    def _clean_up(self) -> None:
        """Delete retries of ended jobs, once per interval."""
        now_s = self.clock.monotonic_s()
        if now_s < self._cleanup_at_s:
            return
        self._cleanup_at_s = now_s + _CLEANUP_INTERVAL_S
        with self.engine.begin() as connection:
            delete_of_ended_jobs(connection)


def read_retried_items(
    objects: ObjectStore,
    file: InputFile,
    retries: Sequence[Retry],
    parse: Callable[[int, int, bytes | None], Item],
    is_stopped: Callable[[], bool],
) -> dict[int, Item]:
    """Read the items of `retries` (in the order of their indexes); return them by index.

    `parse` returns the item of an index, offset and line. `is_stopped` is called before each read;
    once true, the items read so far are returned. Lines without a known offset are searched from
    the start of the file. Items whose line validation would have rejected are left out. Raises the
    errors of the object store.
    """
    items: dict[int, Item] = {}
    known = {r.item_index: r.line_offset for r in retries if r.line_offset is not None}
    lines = read_lines_at(objects, file.key, list(known.values()), is_stopped)
    for (index, offset), line in zip(known.items(), lines, strict=False):
        with suppress(InputChangedError):
            items[index] = parse(index, offset, line)
    # A set: an item may wait for two attempts if the later one was scheduled before the row of the
    # earlier one was deleted.
    unknown = sorted({r.item_index for r in retries} - known.keys())
    if unknown and not is_stopped():
        for index, offset, line in read_item_lines(objects, file, unknown, is_stopped):
            with suppress(InputChangedError):
                items[index] = parse(index, offset, line)
    return items


def _read_groups(
    job: OpenJob, retries: Sequence[Retry]
) -> Iterator[tuple[InputFile, JobRef, list[Retry]]]:
    """Yield retries in item order, grouped by file and by the number that is read at once."""
    ordered = sorted(retries, key=lambda retry: retry.item_index)
    for file, group in job.files.group_by_file(ordered, lambda retry: retry.item_index):
        ref = job.ref_at(group[0].item_index)
        for first in range(0, len(group), _READ_MAX):
            yield file, ref, group[first : first + _READ_MAX]
