"""Attributes a crash of the process to one execution where the `attempts` topic allows it.

When a process crashes while several executions run, any of them may be the cause. So a suspect
execution, whose next crash would be charged to it, records whether it ran alongside others.
Another execution that starts during a suspect's run first waits until that is recorded, and for
nothing more; while the topic is unavailable, until the suspect has ended. A suspect whose crash
stayed ambiguous then has the engine to itself, for a bounded time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from gpu_consumers.quarantine.attempt_log import AttemptsUnavailableError
from gpu_consumers.quarantine.host_health import HostHealth

EXCLUSIVE_S_MAX: Final = 10.0
"""Longest time that other executions are kept out: while the engine drains and a suspect runs."""

_RECORD_RETRY_S: Final = 0.5  # while the topic of attempts is unavailable

RecordRun = Callable[[bool], Awaitable[None]]
"""Records that an execution runs, and whether alongside others; returns when acknowledged."""


class _SuspectRun:
    """The execution of one suspect, and what is recorded of it."""

    def __init__(self, record_run: RecordRun) -> None:
        self._record_run = record_run
        self._lock = asyncio.Lock()
        self.runs_alongside = False  # as recorded
        self.has_ended = False  # the record must not change any more

    async def record(self, *, runs_alongside: bool) -> None:
        async with self._lock:
            if not self.runs_alongside and not self.has_ended:
                await self._record_run(runs_alongside)
                self.runs_alongside = runs_alongside


class CrashAttribution:
    """Coordinates executions of all classes of a replica. For one event loop."""

    def __init__(
        self, exclusive_s_max: float = EXCLUSIVE_S_MAX, *, host: HostHealth | None = None
    ) -> None:
        self.host = host or HostHealth()
        """Whether a crash speaks against the items or against their host."""

        self._exclusive_s_max = exclusive_s_max
        self._suspect_slot = asyncio.Lock()
        self._suspect_run: _SuspectRun | None = None
        self._running_count = 0  # without the suspect
        self._is_drained, self._is_open = asyncio.Event(), asyncio.Event()
        self._is_drained.set()
        self._is_open.set()
        self._reopening: asyncio.TimerHandle | None = None
        self._suspect_count = 0
        self.on_suspects_changed: list[Callable[[], None]] = []
        """Called when `has_suspects` changes."""

    def has_suspects(self) -> bool:
        """Return whether the replica has a batch or call that may have crashed a process."""
        return self._suspect_count > 0

    @contextlib.contextmanager
    def suspect_present(self) -> Iterator[None]:
        """Count a suspect during the block, whether or not it runs."""
        self._add_suspects(1)
        try:
            yield
        finally:
            self._add_suspects(-1)

    def _add_suspects(self, count: int) -> None:
        had_suspects = self.has_suspects()
        self._suspect_count += count
        if self.has_suspects() != had_suspects:
            for notify in self.on_suspects_changed:
                notify()

    @contextlib.asynccontextmanager
    async def run_alongside(self) -> AsyncIterator[None]:
        """Run the block in the engine alongside other executions. Raises DeliveryError."""
        while not self._is_open.is_set() or (
            self._suspect_run and not self._suspect_run.runs_alongside
        ):
            await self._is_open.wait()
            if self._suspect_run is not None:
                try:
                    await self._suspect_run.record(runs_alongside=True)
                except AttemptsUnavailableError:  # the suspect ends soon, or its record is written
                    await asyncio.sleep(_RECORD_RETRY_S)
        self._running_count += 1
        self._is_drained.clear()
        try:
            yield
        finally:
            self._running_count -= 1
            if not self._running_count:
                self._is_drained.set()

    async def acquire_suspect_slot(self, *, drains_engine: bool = False) -> None:
        """Wait until no other suspect has the slot; needs one `release_suspect_slot`.

        With `drains_engine`, keep other executions out and wait for those that run, both for
        `exclusive_s_max` at most.
        """
        await self._suspect_slot.acquire()
        if not drains_engine:
            return
        self._is_open.clear()
        loop = asyncio.get_running_loop()
        self._reopening = loop.call_later(self._exclusive_s_max, self._is_open.set)
        waits = [asyncio.create_task(event.wait()) for event in (self._is_drained, self._is_open)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.release_suspect_slot()
            raise
        finally:
            for wait in waits:
                wait.cancel()

    def release_suspect_slot(self) -> None:
        """Admit other executions and the next suspect."""
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None
        self._is_open.set()
        self._suspect_slot.release()

    @contextlib.asynccontextmanager
    async def run_recorded(self, record_run: RecordRun, *, is_suspect: bool) -> AsyncIterator[None]:
        """Run the block as a recorded execution; a suspect's record also says what runs alongside.

        It is recorded after its admission: a crash before that is not one of its own. The caller
        holds the suspect slot for a suspect. Raises what `record_run` raises.
        """
        if not is_suspect:
            async with self.run_alongside():
                await record_run(False)
                yield
            return
        run = self._suspect_run = _SuspectRun(record_run)
        try:
            await run.record(runs_alongside=self._running_count > 0)
            yield
        finally:
            run.has_ended = True
            self._suspect_run = None
