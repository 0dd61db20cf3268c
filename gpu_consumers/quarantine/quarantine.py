"""Quarantine of batches: redelivered ones, and those that are too large for the engine's memory.

A poison item crashes every process that runs it, together with its batch. So a redelivered batch
runs in units, first of a tenth. Each unit is recorded on the `attempts` topic before it starts.
After a crash the next owner reads which unit was running, splits it, and runs the new units with
nothing alongside. A completed batch stays recorded without units until its offset is committed.
(Kafka users often dead-letter such records; here only the poison item fails.)

In its first quarantine a batch runs alongside new ones: after a crash, batches in flight are
redelivered whether they ran or waited. `ItemSemaphore` keeps the number of running suspects small.

An engine that runs out of memory survives, so its batch is split at once and not recorded.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from gpu_consumers import metrics
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.bulk.other_versions import abort_other_version
from gpu_consumers.inflight.batch_run import (
    BatchAbortReason,
    BatchRun,
    DeliveredBatch,
    ExecutionStatus,
)
from gpu_consumers.inflight.item_outcomes import CRASHES_ENGINE, OUT_OF_MEMORY
from gpu_consumers.quarantine.attempt_log import AttemptLog, AttemptsUnavailableError
from gpu_consumers.quarantine.crash_attribution import CrashAttribution
from gpu_consumers.quarantine.locks import CrashCountOrder, ItemSemaphore, SharedExclusiveLock
from gpu_consumers.quarantine.narrowing import (
    SPLIT_COUNT,
    crash_count,
    crashed_elsewhere,
    initial_units,
    narrow_units,
    split_unit,
)
from gpu_consumers.quarantine.other_hosts import OtherHosts
from topics.records.attempts import AttemptUnit, BatchAttempt
from topics.records.received_record import ReceivedRecord

_LOG = logging.getLogger(__name__)
SUSPECT_DELAY_S: Final = 1.0
"""How long a unit waits for new batches while a batch is here that was running at a crash. It waits
so for each further crash of its own, which also separates the crashes of several replicas."""

_COMPLETED_MAX: Final = 10_000  # beyond, the topic keeps a small record that is never read
_STOPPED: Final = {ExecutionStatus.UNAVAILABLE, ExecutionStatus.ABORTED}


@dataclass(slots=True)
class _QuarantinedBatch:
    """A batch in quarantine and its units that are left."""

    run: BatchRun
    units: list[AttemptUnit]
    incarnation: int = 0  # of its owners that record attempts; 0: this owner records none
    is_recorded: bool = False  # by this owner
    last_attempt: BatchAttempt | None = None  # of the previous owner
    delayed_for_crashes: int = 0  # the highest crash count that has waited SUSPECT_DELAY_S
    is_too_large: bool = False  # a unit of it ran out of memory alongside others

    def runs_shared(self, unit: AttemptUnit) -> bool:
        """Whether `unit` may run alongside others: it only was in flight at one crash."""
        return unit.crashes == 1 and not self.is_too_large


class Quarantine:
    """Runs few suspect items at a time, and units with two or more crashes alone in their class."""

    def __init__(
        self,
        execution: BatchExecution,
        log: AttemptLog,
        lock: SharedExclusiveLock,
        attribution: CrashAttribution,
        *,
        crashes_max: int,
        suspect_delay_s: float = SUSPECT_DELAY_S,
    ) -> None:
        """An item is charged after `crashes_max` crashes, if it ran alone in the last one.

        `attribution` is shared by all classes of the replica.
        """
        assert crashes_max > 2, "a unit that runs alongside others must not be charged"
        self._suspect_delay_s = suspect_delay_s
        self._execution, self._log, self._lock = execution, log, lock
        self._attribution, self._host = attribution, attribution.host
        self._crashes_max, self._other_hosts = crashes_max, OtherHosts(log)
        self._completed: deque[DeliveredBatch] = deque(maxlen=_COMPLETED_MAX)  # still recorded
        self._order = CrashCountOrder()
        self._shared_slots = ItemSemaphore(SPLIT_COUNT)  # for units that run alongside others
        self._crashed_batch_count = 0  # batches here that were running at a crash

    async def run_redelivered(self, run: BatchRun) -> ExecutionStatus | None:
        """Run a redelivered batch; return how its last unit ended, None if nothing was executed.

        1. Read the last attempt. 2. Narrow the units; charge and publish the poison item. 3. Run
        the units. 4. Record that none is left. The attempt is deleted after the commit: a crash
        before it redelivers the batch. If the model version of the batch is not here, step 3
        requeues the items of the units.
        """
        batch = _QuarantinedBatch(run, initial_units(len(run.items)), incarnation=1)
        self._order.set_crash_count(run, 0)
        try:
            with nullcontext() if run.has_other_version else self._attribution.suspect_present():
                await run.until_aborted(self._read_last_attempt(batch))
                last = batch.last_attempt
                if last is not None and not last.units:  # completed, but its offset not committed
                    if run.abort_reason is not BatchAbortReason.LOST:
                        self._completed.append(run.delivered)
                    return None
                if run.has_other_version:
                    await abort_other_version(run)
                else:
                    metrics.BATCHES_ISOLATED.labels("redelivered").inc()
                status = await self._run_narrowed(batch)
        finally:
            self._order.remove(run)
        if run.abort_reason is not BatchAbortReason.LOST:
            if batch.units or not batch.is_recorded:
                batch.units.clear()
                await self._record(batch)
            self._completed.append(run.delivered)
        elif batch.is_recorded:  # the next owner must not count this abort as a crash
            await self._record(batch)
        return status

    async def run_too_large(self, run: BatchRun) -> ExecutionStatus | None:
        """Run what is left of a batch that exceeded the engine's memory, in units."""
        metrics.BATCHES_ISOLATED.labels("out_of_memory").inc()
        self._order.set_crash_count(run, 0)
        try:
            units = split_unit(AttemptUnit(0, len(run.items), 0))
            return await self._run_units(_QuarantinedBatch(run, units))
        finally:
            self._order.remove(run)

    async def record_completed(self, run: BatchRun) -> None:
        """Record a new batch as completed while a batch is here that may crash the process.

        Its offset may wait for the offset of that batch, and after a crash the next owner would
        run it again.
        """
        if self._crashed_batch_count and run.abort_reason is not BatchAbortReason.LOST:
            completed = _QuarantinedBatch(run, [], incarnation=1)
            await self._record_unless_unavailable(completed)
            self._completed.append(run.delivered)

    async def delete_attempts(self, is_committed: Callable[[ReceivedRecord], bool]) -> None:
        """Delete the attempts of completed batches that are committed. Raises DeliveryError."""
        for _ in range(len(self._completed)):
            delivered = self._completed.popleft()
            if is_committed(delivered.record):
                await self._log.delete_attempt(delivered.batch.batch_id)
            else:
                self._completed.append(delivered)

    async def _run_narrowed(self, batch: _QuarantinedBatch) -> ExecutionStatus | None:
        """Continue where the previous owner stopped; charge and publish a poison item."""
        run, last = batch.run, batch.last_attempt
        was_running = last is not None and (
            last.is_running or any(unit.awaits_proof for unit in last.units)
        )
        self._crashed_batch_count += was_running
        try:
            if last is not None:
                batch.incarnation = last.life + 1
                narrowed = narrow_units(
                    last,
                    crashes_max=self._crashes_max,
                    host_id=self._host.host_id,
                    verdict=self._host.present_verdict,
                    repeats_here=False,
                )
                batch.units = narrowed.units
                if narrowed.crashed_alone is not None:
                    # Before this owner's first record, which replaces the one that says so.
                    job, _ = run.items[narrowed.crashed_alone.first]
                    run.sends.send_process_ends(job, narrowed.crashed_alone.process_ends)
                if narrowed.charged is not None:
                    self._charge_item(run, narrowed.charged)
            await self._execution.publish_outcomes(run, [*run.answers], requeues=False)
            return await self._run_units(batch)
        finally:
            self._crashed_batch_count -= was_running

    async def _run_units(self, batch: _QuarantinedBatch) -> ExecutionStatus | None:
        """Run units until none is left, the pool is unavailable or the batch is aborted.

        Between two units, batches that wait for the shared lock are admitted.
        """
        run = batch.run
        status: ExecutionStatus | None = None
        while (unit := self._first_open_unit(batch)) and status not in _STOPPED:
            if unit.awaits_proof:
                status = await self._charge_when_proven(batch, unit)
                continue
            shared = batch.runs_shared(unit)
            status = await run.until_aborted(self._acquire_locks(batch, unit, shared=shared))
            if status is ExecutionStatus.ANSWERED:
                try:
                    status = await self._run_unit(batch, unit, shared=shared)
                except AttemptsUnavailableError:
                    is_recorded = False
                else:
                    is_recorded = True
                finally:
                    self._release_locks(unit, shared=shared)
                if not is_recorded:  # wait without locks: other batches run meanwhile
                    status = await run.until_aborted(self._record(batch))
        if run.abort_reason is not BatchAbortReason.LOST:
            left = [p for unit in batch.units for p in self._execution.open_positions(run, unit)]
            await self._execution.publish_outcomes(run, left, requeues=True)
        return ExecutionStatus.UNAVAILABLE if run.is_store_unavailable else status

    async def _charge_when_proven(
        self, batch: _QuarantinedBatch, unit: AttemptUnit
    ) -> ExecutionStatus:
        """Charge an item that crashed alone, once the host of the crash has served other work.

        If that is another host, which does not serve in time, the item runs once more, here.
        """
        self._order.remove(batch.run)  # no other unit waits for this one
        await self._record(batch)
        is_proven = True

        async def wait_for_proof() -> None:
            nonlocal is_proven
            if crashed_elsewhere(unit, self._crashes_max, self._host.host_id):
                is_proven = bool(unit.process_ends) and await self._other_hosts.wait_until_served(
                    unit.hosts[-1], unit.process_ends[-1]
                )
            else:
                await self._host.wait_until_proven()

        status = await batch.run.until_aborted(wait_for_proof())
        if not is_proven:
            batch.units[0] = msgspec.structs.replace(unit, awaits_proof=False)
        elif status is ExecutionStatus.ANSWERED:
            batch.units.remove(unit)
            self._charge_item(batch.run, unit)
            await self._execution.publish_outcomes(batch.run, [unit.first], requeues=False)
            await self._record(batch)
        return status

    def _first_open_unit(self, batch: _QuarantinedBatch) -> AttemptUnit | None:
        """Return the first unit that has open items; drop the units before it."""
        while batch.units and not self._execution.open_positions(batch.run, batch.units[0]):
            batch.units.pop(0)
        return batch.units[0] if batch.units else None

    async def _acquire_locks(
        self, batch: _QuarantinedBatch, unit: AttemptUnit, *, shared: bool
    ) -> None:
        """Wait until no unit with fewer crashes is left, then acquire the locks for `unit`."""
        self._order.set_crash_count(batch.run, crash_count(unit))
        if unit.forgiven >= self._crashes_max or (not shared and self._host.is_failing):
            await self._host.wait_until_proven()
        await self._order.wait_until_lowest(batch.run)
        if self._crashed_batch_count and unit.crashes > batch.delayed_for_crashes:
            await asyncio.sleep(self._suspect_delay_s)
            batch.delayed_for_crashes = unit.crashes
            await self._order.wait_until_lowest(batch.run)  # batches that arrived meanwhile
        if not shared:
            await self._lock.acquire_exclusive()
            return
        await self._shared_slots.acquire(unit.count)
        try:
            await self._lock.acquire_shared()
        except asyncio.CancelledError:
            self._shared_slots.release(unit.count)
            raise

    def _release_locks(self, unit: AttemptUnit, *, shared: bool) -> None:
        if shared:
            self._lock.release_shared()
            self._shared_slots.release(unit.count)
        else:
            self._lock.release_exclusive()

    async def _run_unit(
        self, batch: _QuarantinedBatch, unit: AttemptUnit, *, shared: bool
    ) -> ExecutionStatus | None:
        """Execute and publish the first unit; None when no item of it is open any more."""
        run = batch.run
        positions = self._execution.open_positions(run, unit)
        if not positions:
            return None
        if run.abort_reason is not None:
            return ExecutionStatus.ABORTED
        status = await self._execute_unit(batch, unit, positions, shared=shared)
        is_too_large = status is ExecutionStatus.OUT_OF_MEMORY
        if is_too_large and shared:
            batch.is_too_large = True  # the unit runs again, alone
            await self._execution.publish_outcomes(run, positions, requeues=False)
            await self._record_unless_unavailable(batch)
            return status
        if is_too_large and len(positions) == 1:
            metrics.ITEMS_CHARGED.labels("out_of_memory").inc()
            self._execution.set_answer(run, positions[0], OUT_OF_MEMORY)
        # An item of an answered unit lacks its answer only if it needs the object store: requeue.
        requeues = status is ExecutionStatus.ANSWERED
        await self._execution.publish_outcomes(run, positions, requeues=requeues)
        if status not in _STOPPED:
            batch.units.pop(0)
            if is_too_large and len(positions) > 1:
                batch.units[:0] = split_unit(unit)
            # Other batches run next: their crash must not be charged to it.
            await self._record_unless_unavailable(batch)
        return status

    async def _execute_unit(
        self, batch: _QuarantinedBatch, unit: AttemptUnit, positions: list[int], *, shared: bool
    ) -> ExecutionStatus:
        """Execute and record the unit; what runs alongside is recorded if it may be charged."""
        run, record_run = batch.run, partial(self._record_start, batch)
        is_suspect = unit.count == 1 and unit.crashes >= self._crashes_max - 1
        if not shared:
            # Only the last try of a single item drains the engine: larger units are never charged.
            drains_engine = unit.count == 1 and unit.crashes >= self._crashes_max
            status = await run.until_aborted(
                self._attribution.acquire_suspect_slot(drains_engine=drains_engine)
            )
            if status is not ExecutionStatus.ANSWERED:
                return status
        try:
            async with self._attribution.run_recorded(record_run, is_suspect=is_suspect):
                return await run.until_aborted(
                    self._execution.execute_items(run, positions, has_lock=True)
                )
        finally:
            if not shared:
                self._attribution.release_suspect_slot()

    async def _read_last_attempt(self, batch: _QuarantinedBatch) -> None:
        delivered = batch.run.delivered
        batch.last_attempt = await self._log.read_attempt(
            delivered.batch.batch_id, delivered.generation
        )

    def _charge_item(self, run: BatchRun, unit: AttemptUnit) -> None:
        position = unit.first
        job, item = run.items[position]
        _LOG.error(
            "an item ends its process",
            extra={"job": str(job.job_id), "index": item.index, "crashes": unit.crashes},
        )
        metrics.ITEMS_CHARGED.labels("crash").inc()
        attempt = item.attempt + unit.crashes - 1
        run.items[position] = job, msgspec.structs.replace(item, attempt=attempt)
        self._execution.set_answer(run, position, CRASHES_ENGINE)

    async def _record_start(self, batch: _QuarantinedBatch, runs_alongside: bool) -> None:
        """Record that a unit runs. Raises AttemptsUnavailableError: then it must not run."""
        if batch.incarnation:
            attempt = self._attempt(batch, is_running=True, runs_alongside=runs_alongside)
            if self._log.is_unavailable or not await self._log.record_unless_unavailable(attempt):
                raise AttemptsUnavailableError
            batch.is_recorded = True

    async def _record_unless_unavailable(self, batch: _QuarantinedBatch) -> None:
        """Record that no unit runs, without waiting for an unavailable topic."""
        if batch.incarnation:
            await self._log.record_unless_unavailable(self._attempt(batch, is_running=False))
            batch.is_recorded = True

    async def _record(self, batch: _QuarantinedBatch) -> None:
        """Record that no unit of a redelivered batch runs; a too large one is not recorded."""
        if batch.incarnation:
            await self._log.record_attempt(self._attempt(batch, is_running=False))
            batch.is_recorded = True

    def _attempt(
        self, batch: _QuarantinedBatch, *, is_running: bool, runs_alongside: bool = False
    ) -> BatchAttempt:
        batch_id, units = batch.run.delivered.batch.batch_id, [*batch.units]
        attempt = BatchAttempt(batch_id, batch.incarnation, units, is_running, runs_alongside)
        return self._host.stamp(attempt)
