"""Executions whose next crash may be charged, and who is in the engine beside them.

A death of the process tells nothing of one execution while there are others: any of them may have
caused it. So the log is told when somebody comes in beside one that is on trial, before it comes
in; nobody waits for more than that. One that such a death has left open has the engine for itself
then, for as long as callers bear to wait.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

HOLD_S: Final = 10.0
"""How long others are kept out at most, until the engine is empty and after it."""

Say = Callable[[bool], Awaitable[None]]
"""Returns when the log knows that an execution runs, and whether others are in the engine."""


class _Trial:
    def __init__(self, say: Say) -> None:
        self._say = say
        self._in_order = asyncio.Lock()
        self.has_company = False  # and the log knows
        self.is_over = False  # what the log knows now must stay

    async def tell(self, *, has_company: bool) -> None:
        async with self._in_order:
            if not self.has_company and not self.is_over:
                await self._say(has_company)
                self.has_company = has_company


class Trials:
    """Shared by the lanes of a replica. For one event loop."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        """Nobody is in the engine."""
        self._hold_s = hold_s
        self._turn = asyncio.Lock()
        self._trial: _Trial | None = None
        self._inside = 0  # but the one on trial
        self._empty, self._open = asyncio.Event(), asyncio.Event()
        self._empty.set()
        self._open.set()
        self._opening: asyncio.TimerHandle | None = None
        self._dangers = 0
        self.on_danger: list[Callable[[], None]] = []
        """Called when danger begins and when it ends."""

    def in_danger(self) -> bool:
        """Whether something is here that may have ended a process, and may end this one."""
        return self._dangers > 0

    @contextlib.contextmanager
    def danger(self) -> Iterator[None]:
        """Have such a thing here for the block, whether or not it runs."""
        self._count_danger(1)
        try:
            yield
        finally:
            self._count_danger(-1)

    def _count_danger(self, more: int) -> None:
        before = self.in_danger()
        self._dangers += more
        if self.in_danger() != before:
            for tell in self.on_danger:
                tell()

    @contextlib.asynccontextmanager
    async def beside(self) -> AsyncIterator[None]:
        """Run the block in the engine, beside whoever is there. Raises DeliveryError."""
        while not self._open.is_set() or (self._trial and not self._trial.has_company):
            await self._open.wait()
            if self._trial is not None:
                await self._trial.tell(has_company=True)
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def take_turn(self, *, empties: bool = False) -> None:
        """Wait until nobody else alone may end the process; each needs one `end_turn`.

        With `empties` nobody else comes in, for a while at most, and those inside are waited for.
        """
        await self._turn.acquire()
        if not empties:
            return
        self._open.clear()
        self._opening = asyncio.get_running_loop().call_later(self._hold_s, self._open.set)
        waits = [asyncio.create_task(event.wait()) for event in (self._empty, self._open)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.end_turn()
            raise
        finally:
            for wait in waits:
                wait.cancel()

    def end_turn(self) -> None:
        """Let the next one have its turn, and others come in."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._open.set()
        self._turn.release()

    @contextlib.asynccontextmanager
    async def on_trial(self, say: Say) -> AsyncIterator[None]:
        """Run the block in the engine, with `take_turn` behind it; `say` tells of it before.

        Raises what `say` raises.
        """
        trial = self._trial = _Trial(say)
        try:
            await trial.tell(has_company=self._inside > 0)
            yield
        finally:
            trial.is_over = True
            self._trial = None
