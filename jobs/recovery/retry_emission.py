"""Emits items again whose retry is due: claim, read their lines, send, flush, delete, commit.

A crash between sends them again under the same attempt number, which the judge counts once.
"""

import logging
import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.clock import Clock
from core.errors import MillraceError
from jobs import metrics
from jobs.expansion.emission import InputChangedError, parse_item, send_items
from jobs.expansion.job_failures import is_job_failure
from jobs.expansion.job_loads import OpenJob, open_jobs
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.input.input_files import InputFile
from jobs.input.line_lookup import read_lines_at
from jobs.recovery.re_emit import read_item_lines
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
from jobs.store.transaction_keepalive import IDLE_S_MAX, LIMIT_IDLE_TIME, flush_with_keepalive
from storage.crypto.data_keys import DataKeys
from storage.objects.errors import ObjectStoreAwayError
from storage.objects.object_store import ObjectStore
from topics.clients.producer import LogProducer
from topics.records.records import Item, JobRef

_LOG = logging.getLogger(__name__)

_ROUND_MAX: Final = 500
"""Retries of one transaction: they, and the bytes of their bodies, are in memory at once."""

_READ_MAX: Final = 100
_SEND_S_MAX: Final = 20.0
"""A round begins no reading after this: the last one must end before it is cut as frozen."""

_ROUND_S_MAX: Final = IDLE_S_MAX - 5.0
"""What lasts longer may be cut already: nothing more is sent or written by it."""

_ASIDE_S: Final = 10.0  # for a job whose file cannot be read
_SWEEP_S: Final = 5.0


class RetryEmitter:
    """Empties what is due within the budget of its pool; any number of processes may."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        producer: LogProducer,
        rules: RetryBudgetRules,
        clock: Clock,
        fraction: Callable[[], float] = random.random,
    ) -> None:
        """`producer` is of this thread alone: a flush waits for what others send, too.

        `fraction` draws whose turn it is: it returns an even random number from [0, 1).
        """
        self._engine = engine
        self._objects = objects
        self._producer = producer
        self._rules = rules
        self._clock = clock
        self._fraction = fraction
        self._keys = DataKeys(objects, clock)
        self._aside_until_s: dict[UUID, float] = {}
        self._sweep_at_s = 0.0
        self._last: dict[str, UUID] = {}  # by pool: the job that was read last

    def step(self, capacities: PoolCapacities) -> None:
        """Emit once what is due for the pools that can work now.

        Raises DeliveryError, and one of DATABASE_AWAY: what was claimed is due again then.
        """
        pools = capacities.pools()
        with self._engine.begin() as connection:
            if not has_waiting_retries(connection):
                return
            due = [d for d in find_due_jobs(connection, _ROUND_MAX) if d.pool in pools]
            create_missing_budgets(connection, {job.pool for job in due})
        by_pool: defaultdict[str, list[DueJob]] = defaultdict(list)
        for job in due:
            if self._aside_until_s.get(job.job_id, 0.0) <= self._clock.monotonic_s():
                by_pool[job.pool].append(job)
        for pool, waiting in by_pool.items():
            metrics.RETRIES_EMITTED.inc(self._round(pool, pools[pool].items_per_s, waiting))
        self._sweep()

    def _round(self, pool: str, items_per_s: float, due: Sequence[DueJob]) -> int:
        """Emit for one pool in one transaction; return how many, 0 when that was cut."""
        with self._engine.connect() as connection:
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
        """Return how many were sent: commit it, or all is sent again. None: it is too late."""
        connection.execute(LIMIT_IDLE_TIME)
        budget = lock_budget(connection, pool, items_per_s, self._rules)
        if budget is None:
            return 0
        room = min(budget.whole, _ROUND_MAX)
        if sum(job.due_count for job in due) > room:
            metrics.RETRIES_DELAYED.inc()
        wanted: defaultdict[UUID, dict[UUID, int]] = defaultdict(dict)
        for waiting in due:
            wanted[waiting.tenant_id][waiting.job_id] = waiting.due_count
        shares = share_budget(room, wanted, self._fraction)
        done: list[tuple[UUID, list[Retry]]] = []
        count = 0
        began_s = self._clock.monotonic_s()
        open_now = open_jobs(connection, [j for j, n in shares.items() if n])
        for job_id in _in_turn(open_now, self._last.get(pool)):
            if self._lasts(began_s, _SEND_S_MAX):
                break
            job, self._last[pool] = open_now[job_id], job_id
            claimed = claim_retries(connection, job_id, job.ref.day, shares[job_id])
            sent = self._send(job, [r for r in claimed if not r.has_ended], began_s)
            count += len(sent)
            done.append((job_id, [*sent, *(r for r in claimed if r.has_ended)]))
        if self._lasts(began_s, _ROUND_S_MAX):
            return None
        flush_with_keepalive(connection, self._producer)
        void_below = lock_void_versions(connection, [job_id for job_id, _ in done])
        for job_id, retries in done:
            # What a pause made void meanwhile has still to come: the resume leaves it to us.
            if void_below.get(job_id, 0) <= open_now[job_id].ref.version:
                delete_retries(connection, job_id, retries)
        spend_budget(connection, pool, budget, count)
        return count

    def _lasts(self, began_s: float, limit_s: float) -> bool:
        return self._clock.monotonic_s() - began_s >= limit_s

    def _send(self, job: OpenJob, retries: Sequence[Retry], began_s: float) -> list[Retry]:
        """Send a job's items until time is up; return those that were sent.

        A job that fails is put aside, alone.
        """
        is_over = partial(self._lasts, began_s, _SEND_S_MAX)
        sent: list[Retry] = []
        lost = 0
        try:
            for file, ref, part in _parts(job, retries):
                items = read_retried_items(self._objects, file, part, ref.endpoint, is_over)
                if self._lasts(began_s, _ROUND_S_MAX):
                    raise ObjectStoreAwayError(key=file.key)  # for as long as one reading took
                found = [retry for retry in part if retry.item_index in items]
                again = (
                    msgspec.structs.replace(items[retry.item_index], attempt=retry.attempt)
                    for retry in found
                )
                send_items(self._producer, ref, again, self._keys)
                sent += found
                if is_over():
                    break
                lost += len(part) - len(found)
            if lost:  # only now: what has a line does not wait for what has none
                raise InputChangedError(items=lost)
        except MillraceError as failure:
            if not is_job_failure(failure):
                raise
            metrics.JOB_FAILURES.inc()
            job_id = job.ref.job_id
            facts = {"job": job_id.hex, "code": failure.code, "facts": failure.facts}
            _LOG.error("retries wait", extra=facts)
            self._aside_until_s[job_id] = self._clock.monotonic_s() + _ASIDE_S
        return sent

    def _sweep(self) -> None:
        """Now and then: forget what is past."""
        now_s = self._clock.monotonic_s()
        if now_s < self._sweep_at_s:
            return
        self._sweep_at_s = now_s + _SWEEP_S
        self._aside_until_s = {j: s for j, s in self._aside_until_s.items() if s > now_s}
        with self._engine.begin() as connection:
            delete_of_ended_jobs(connection)


def _parts(
    job: OpenJob, retries: Sequence[Retry]
) -> Iterator[tuple[InputFile, JobRef, list[Retry]]]:
    """Yield retries in the order of their items, so many as are read at once, with their file."""
    ordered = sorted(retries, key=lambda retry: retry.item_index)
    for file, its in job.files.by_file(ordered, lambda retry: retry.item_index):
        ref = job.ref_at(its[0].item_index)
        for first in range(0, len(its), _READ_MAX):
            yield file, ref, its[first : first + _READ_MAX]


def _in_turn(job_ids: Collection[UUID], last: UUID | None) -> list[UUID]:
    """Begin behind the job that was read last, or one could take the time of every round."""
    ordered = sorted(job_ids)
    first = bisect_right(ordered, last) if last else 0
    return ordered[first:] + ordered[:first]


def read_retried_items(
    objects: ObjectStore,
    file: InputFile,
    retries: Sequence[Retry],
    endpoint: str,
    is_over: Callable[[], bool],
) -> dict[int, Item]:
    """Return the items of `retries`, which are in the order of their indexes, by index.

    Asked before each read, `is_over` ends it: what was read by then is returned.
    Lines whose offset is not known are looked for from the start of the file. What has no line
    that validation would have taken is left out. Raises what a store raises.
    """
    items: dict[int, Item] = {}
    known = {r.item_index: r.line_offset for r in retries if r.line_offset is not None}
    lines = read_lines_at(objects, file.key, list(known.values()), is_over)
    for (index, offset), line in zip(known.items(), lines, strict=False):
        with suppress(InputChangedError):
            items[index] = parse_item(index, offset, line, endpoint)
    # A set: one item may wait for two attempts, the later one scheduled before the row of the
    # earlier one was deleted.
    unknown = sorted({r.item_index for r in retries} - known.keys())
    if unknown and not is_over():
        for index, offset, line in read_item_lines(objects, file, unknown, is_over):
            with suppress(InputChangedError):
                items[index] = parse_item(index, offset, line, endpoint)
    return items
