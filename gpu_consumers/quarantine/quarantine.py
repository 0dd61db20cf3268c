"""Batches that run apart: those that may have run before, and those too large for the memory.

An item that ends its process would end every process that runs it, and its batch with it. So what
may have run before runs in tenths, each named on the log before it begins: the next owner sees
what ran when the process ended, and goes on with tenths of that, with nothing beside them. Of
what has ended it sees that nothing is left, until the offset is committed.

The first time, what is new runs beside: in flight as it is, it would be suspect after a death
wherever it waits. Few suspects run at once all the same, as each of them runs alone after that.

An engine that runs out of memory lives on, so its batch is split at once and nothing is written.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from gpu_consumers import metrics
from gpu_consumers.bulk.batch_execution import BatchExecution
from gpu_consumers.inflight.batch_run import BatchRun, Cut, Ending
from gpu_consumers.inflight.delivery import Delivery
from gpu_consumers.inflight.outcomes import CRASHES_ENGINE, OUT_OF_MEMORY
from gpu_consumers.quarantine.attempt_log import AttemptLog
from gpu_consumers.quarantine.crash_attribution import Trials
from gpu_consumers.quarantine.narrowing import PARTS, first_units, narrowed, split
from gpu_consumers.quarantine.precedence import Precedence
from gpu_consumers.quarantine.room import Room
from gpu_consumers.quarantine.turns import Turns
from topics.records.received_record import ReceivedRecord
from topics.records.records import AttemptUnit, BatchAttempt

_LOG = logging.getLogger(__name__)
REST_S: Final = 1.0
"""How long what came again waits for what is new, where some of it ran when its process ended; what
ended several waits once more. Where one process ends after another, others have this of each."""

_ENDED_MAX: Final = 10_000  # beyond, the log keeps a small record that nobody needs


@dataclass(slots=True)
class _Apart:
    """A batch that runs apart and what is left of it."""

    run: BatchRun
    units: list[AttemptUnit]
    life: int = 0  # of its owners that tell of it on the log; 0: this one does not
    is_said: bool = False  # the log tells of this owner
    before: BatchAttempt | None = None  # what the last owner said
    rested: int = 0  # before what ended so many processes
    is_large: bool = False  # memory was not enough for a unit of it beside others

    @property
    def is_danger(self) -> bool:
        """Whether it ran when its process ended."""
        return self.before is not None and self.before.is_running

    @property
    def has_ended(self) -> bool:
        """Whether the last owner finished it, and just could not commit."""
        return self.before is not None and not self.before.units


class Isolation:
    """Runs few suspects at a time, and with nothing of their class beside them what ended two."""

    def __init__(
        self,
        execution: BatchExecution,
        log: AttemptLog,
        turns: Turns,
        trials: Trials,
        *,
        crashes_max: int,
        rest_s: float = REST_S,
    ) -> None:
        """`crashes_max` executions of an item may end with their process, the last one alone.

        `trials` are those of all classes.
        """
        assert crashes_max > 2, "what bears company is not on trial"
        self._rest_s = rest_s
        self._execution, self._log, self._turns = execution, log, turns
        self._trials = trials
        self._crashes_max = crashes_max
        self._ended: deque[Delivery] = deque(maxlen=_ENDED_MAX)  # what the log still tells of
        self._precedence = Precedence()
        self._room = Room(PARTS)  # for units that bear company
        self._danger_count = 0  # batches here that ran when their process ended

    async def redelivered(self, run: BatchRun) -> Ending | None:
        """Run a batch that may have run before; as `BatchExecution.whole`."""
        apart = _Apart(run, first_units(len(run.items)), life=1)
        self._precedence.rank(run, 0)
        try:
            with self._trials.danger():
                await run.until_cut(self._look(apart))
                if apart.has_ended:
                    if run.cut is not Cut.DROP:
                        self._ended.append(run.delivery)
                    return None
                metrics.BATCHES_ISOLATED.labels("redelivered").inc()
                ending = await self._once_known(apart)
        finally:
            self._precedence.leave(run)
        if run.cut is not Cut.DROP:
            # Forgotten later: a process that ends before the commit has it read again.
            if apart.units or not apart.is_said:
                apart.units.clear()
                await self._say(apart, is_running=False)
            self._ended.append(run.delivery)
        elif apart.is_said:  # the next owner must not take this one's going for a crash
            await self._say(apart, is_running=False)
        return ending

    async def _once_known(self, apart: _Apart) -> Ending | None:
        self._danger_count += apart.is_danger
        try:
            self._learn(apart)
            charged = [*apart.run.answers]
            await self._execution.publish(apart.run, charged, puts_back=False)
            return await self._in_units(apart)
        finally:
            self._danger_count -= apart.is_danger

    async def ended_beside(self, run: BatchRun) -> None:
        """Say of a batch that ran with others that nothing is left, if what is here may end us.

        Its offset cannot be committed before that of what may: the next owner would run it again.
        """
        if self._danger_count and run.cut is not Cut.DROP:
            await self._say(_Apart(run, [], life=1), is_running=False)
            self._ended.append(run.delivery)

    async def forget(self, is_committed: Callable[[ReceivedRecord], bool]) -> None:
        """Forget batches that have ended and that nobody reads again. Raises DeliveryError."""
        for _ in range(len(self._ended)):
            delivery = self._ended.popleft()
            if is_committed(delivery.record):
                await self._log.forget(delivery.batch.batch_id)
            else:
                self._ended.append(delivery)

    async def too_large(self, run: BatchRun) -> Ending | None:
        """Run what is left of a batch that was too much for the memory."""
        metrics.BATCHES_ISOLATED.labels("out_of_memory").inc()
        self._precedence.rank(run, 0)
        try:
            return await self._in_units(_Apart(run, split(AttemptUnit(0, len(run.items), 0))))
        finally:
            self._precedence.leave(run)

    async def _in_units(self, apart: _Apart) -> Ending | None:
        """Run units until none is left, or the pool or a cut ends it; return how the last ended.

        Between two, what waits to run with others has its turn.
        """
        run = apart.run
        ending: Ending | None = None
        while (unit := self._first_open(apart)) and ending not in {Ending.AWAY, Ending.CUT}:
            in_company = self._bears_company(apart, unit)
            ending = await run.until_cut(self._enter(apart, unit, in_company=in_company))
            if ending is Ending.ANSWERED:
                try:
                    ending = await self._next(apart, unit, in_company=in_company)
                finally:
                    self._leave(unit, in_company=in_company)
        if run.cut is not Cut.DROP:
            left = [p for unit in apart.units for p in self._execution.open_positions(run, unit)]
            await self._execution.publish(run, left, puts_back=True)
        return Ending.AWAY if run.store_away else ending

    def _first_open(self, apart: _Apart) -> AttemptUnit | None:
        """Return the first unit of which something is open; those before it are done."""
        while apart.units and not self._execution.open_positions(apart.run, apart.units[0]):
            apart.units.pop(0)
        return apart.units[0] if apart.units else None

    def _bears_company(self, apart: _Apart, unit: AttemptUnit) -> bool:
        """Whether nothing is known of it but that it lay in a replica that ended."""
        return unit.crashes == 1 and not apart.is_large

    async def _enter(self, apart: _Apart, unit: AttemptUnit, *, in_company: bool) -> None:
        """Come in when all has ended that has ended fewer processes."""
        self._precedence.rank(apart.run, unit.crashes)
        await self._precedence.turn(apart.run)
        if self._danger_count and unit.crashes > apart.rested:
            await asyncio.sleep(self._rest_s)
            apart.rested = unit.crashes
            await self._precedence.turn(apart.run)  # what came meanwhile
        if not in_company:
            await self._turns.enter_alone()
            return
        await self._room.enter(unit.count)
        try:
            await self._turns.enter()
        except asyncio.CancelledError:
            self._room.leave(unit.count)
            raise

    def _leave(self, unit: AttemptUnit, *, in_company: bool) -> None:
        if in_company:
            self._turns.leave()
            self._room.leave(unit.count)
        else:
            self._turns.leave_alone()

    async def _next(self, apart: _Apart, unit: AttemptUnit, *, in_company: bool) -> Ending | None:
        """Run the first unit; None when nothing of it is open any more."""
        run = apart.run
        positions = self._execution.open_positions(run, unit)
        if not positions:
            return None
        if run.cut is not None:
            return Ending.CUT
        last = await self._unit(apart, unit, positions, in_company=in_company)
        if last is Ending.OUT_OF_MEMORY and in_company:
            apart.is_large = True  # once more, alone
            await self._execution.publish(run, positions, puts_back=False)
            await self._say(apart, is_running=False)
            return last
        if last is Ending.OUT_OF_MEMORY and len(positions) == 1:
            metrics.ITEMS_CHARGED.labels("out_of_memory").inc()
            self._execution.answer(run, positions[0], OUT_OF_MEMORY)
        # What the object store does not give or take goes back at once.
        await self._execution.publish(run, positions, puts_back=last is Ending.ANSWERED)
        if last not in {Ending.AWAY, Ending.CUT}:
            apart.units.pop(0)
            if last is Ending.OUT_OF_MEMORY and len(positions) > 1:
                apart.units[:0] = split(unit)
            if apart.life:  # others run before the next: what has ended must not be charged
                await self._say(apart, is_running=False)
        return last

    async def _unit(
        self, apart: _Apart, unit: AttemptUnit, positions: list[int], *, in_company: bool
    ) -> Ending:
        """Ask for the unit, which the log tells of before."""
        run = apart.run
        if in_company:
            async with self._in_engine(apart, unit):
                return await self._execution.ask(run, positions, has_entered=True)
        # The last time others were in the engine; several are not on trial, they come in beside.
        empties = unit.count == 1 and unit.crashes >= self._crashes_max
        ending = await run.until_cut(self._trials.take_turn(empties=empties))
        if ending is not Ending.ANSWERED:
            return ending
        try:
            async with self._in_engine(apart, unit):
                return await self._execution.ask(run, positions, has_entered=True)
        finally:
            self._trials.end_turn()

    @contextlib.asynccontextmanager
    async def _in_engine(self, apart: _Apart, unit: AttemptUnit) -> AsyncIterator[None]:
        """Tell of a unit that begins, and of who is beside one that would be charged."""
        if apart.life and unit.count == 1 and unit.crashes >= self._crashes_max - 1:
            async with self._trials.on_trial(partial(self._say_running, apart)):
                yield
        else:
            async with self._trials.beside():  # before it is told of: it has not begun until then
                if apart.life:
                    await self._say_running(apart, in_company=False)
                yield

    async def _look(self, apart: _Apart) -> None:
        delivery = apart.run.delivery
        apart.before = await self._log.before(delivery.batch.batch_id, delivery.generation)

    def _learn(self, apart: _Apart) -> None:
        """Go on where the last owner was; charge the item that ended it once too often."""
        if apart.before is None:
            return
        apart.life = apart.before.life + 1
        after = narrowed(apart.before, crashes_max=self._crashes_max)
        apart.units = after.units
        if after.charged is not None:
            self._charge(apart.run, after.charged)

    def _charge(self, run: BatchRun, unit: AttemptUnit) -> None:
        position = unit.first
        job, item = run.items[position]
        _LOG.error(
            "an item ends its process",
            extra={"job": str(job.job_id), "index": item.index, "crashes": unit.crashes},
        )
        metrics.ITEMS_CHARGED.labels("crash").inc()
        attempt = item.attempt + unit.crashes - 1
        run.items[position] = job, msgspec.structs.replace(item, attempt=attempt)
        self._execution.answer(run, position, CRASHES_ENGINE)

    async def _say_running(self, apart: _Apart, in_company: bool) -> None:
        await self._say(apart, is_running=True, in_company=in_company)

    async def _say(self, apart: _Apart, *, is_running: bool, in_company: bool = False) -> None:
        batch_id = apart.run.delivery.batch.batch_id
        units = [*apart.units]
        await self._log.say(BatchAttempt(batch_id, apart.life, units, is_running, in_company))
        apart.is_said = True
