"""Which LoRA adapters an engine has loaded: loaded once, kept while used, evicted when least used.

The engine never evicts by itself: it never knows more adapters than fit, and each is removed before
another takes its place. vLLM evicts silently, and loads again from a folder that may be gone.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final, Protocol

from core.errors import Disposition, MillraceError, PoolBusyError
from topics.records.records import JobRef

SLOT_WAIT_S: Final = 30.0
"""Time that items wait for an adapter to become unused before they are requeued."""

_REFUSALS_MAX: Final = 1_000


class AdapterRefusedError(MillraceError):
    """The engine does not take the adapter."""

    code = "adapter_refused"
    disposition = Disposition.REJECT


class PinnedFolder(Protocol):
    """A folder of verified files that stays as it is until it is released."""

    @property
    def path(self) -> Path:
        """The folder; absolute."""

    def release(self) -> None:
        """Allow the folder to be deleted; called once."""


StageAdapter = Callable[[str], Awaitable[PinnedFolder]]
"""Returns the verified files of an adapter version. Raises MillraceError; with the disposition
RETRY its items are requeued, with REJECT they fail."""


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter that the engine knows."""

    version: str  # 64 hex digits
    number: int  # the engine's id: of one load, and never used again in this process
    folder: PinnedFolder
    users: int = 0  # executions that run items with it


class AdapterEngine(Protocol):
    """The part of an engine that adds and removes adapters."""

    async def add(self, adapter: LoadedAdapter) -> None:
        """Load an adapter. Raises AdapterRefusedError, after which the engine goes on."""

    async def remove(self, adapter: LoadedAdapter) -> None:
        """Unload an adapter that no item uses."""


class AdapterSlots:
    """The loaded adapters of one engine. Used on one event loop."""

    def __init__(
        self,
        size_max: int,
        stage: StageAdapter,
        engine: AdapterEngine,
        *,
        wait_s_max: float = SLOT_WAIT_S,
    ) -> None:
        """At most `size_max` adapters are loaded at once; 0 loads none."""
        self._size_max, self._stage, self._engine = size_max, stage, engine
        self._wait_s_max = wait_s_max
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()  # least recently used first
        self._loads: dict[str, asyncio.Task[LoadedAdapter]] = {}  # in progress, by version
        self._changing = asyncio.Lock()  # one load or eviction at a time
        self._released = asyncio.Event()
        self._numbers = count(1)
        self._refused: OrderedDict[str, str] = OrderedDict()  # why, by version

    @property
    def versions(self) -> list[str]:
        """The loaded adapters, least recently used first."""
        return [*self._loaded]

    @asynccontextmanager
    async def use(self, version: str) -> AsyncIterator[LoadedAdapter]:
        """Keep an adapter loaded during the block; load it if it is not.

        Raises what staging and the engine raise, AdapterRefusedError among them, and PoolBusyError
        when all slots stay in use for too long.
        """
        adapter = await self._acquire(version)
        try:
            yield adapter
        finally:
            adapter.users -= 1
            self._released.set()

    async def close(self) -> None:
        """Release all folders; the engine has ended."""
        for load in [*self._loads.values()]:
            load.cancel()
        if self._loads:
            await asyncio.wait([*self._loads.values()])
        while self._loaded:
            _, adapter = self._loaded.popitem()
            adapter.folder.release()

    async def _acquire(self, version: str) -> LoadedAdapter:
        if self._size_max == 0:
            raise AdapterRefusedError("This replica loads no adapters (adapters_max is 0).")
        while (adapter := self._loaded.get(version)) is None:
            if (reason := self._refused.get(version)) is not None:
                raise AdapterRefusedError(reason)
            load = self._loads.get(version)
            if load is None:
                load = self._loads[version] = asyncio.create_task(self._load(version))
                load.add_done_callback(lambda task: self._end_load(version, task))
            # A cancelled caller must not cancel the load, for which others may wait, too.
            await asyncio.shield(load)
        adapter.users += 1
        self._loaded.move_to_end(version)
        return adapter

    def _end_load(self, version: str, task: asyncio.Task[LoadedAdapter]) -> None:
        del self._loads[version]
        if not task.cancelled():
            task.exception()  # otherwise asyncio logs a failure that nobody awaited

    async def _load(self, version: str) -> LoadedAdapter:
        folder = await self._stage(version)
        try:
            await self._lock_slot()
            try:
                await self._free_slot()
                adapter = LoadedAdapter(version, next(self._numbers), folder)
                await self._engine.add(adapter)
                self._loaded[version] = adapter
            finally:
                self._changing.release()
        except BaseException as failure:
            folder.release()
            if isinstance(failure, AdapterRefusedError):
                self._remember_refusal(version, str(failure))
            raise
        return adapter

    async def _lock_slot(self) -> None:
        """Acquire the right to load one adapter, once a slot is free or its adapter is unused.

        Only this wait has a limit: an interrupted eviction would leave an adapter in the engine
        that nobody counts. Raises PoolBusyError.
        """
        try:
            async with asyncio.timeout(self._wait_s_max):
                await self._changing.acquire()
                try:
                    while len(self._loaded) >= self._size_max and self._unused() is None:
                        self._released.clear()
                        await self._released.wait()
                except BaseException:
                    self._changing.release()
                    raise
        except TimeoutError:
            raise PoolBusyError("All adapter slots of this replica are in use.") from None

    def _unused(self) -> LoadedAdapter | None:
        """Return the least recently used adapter that nobody uses."""
        return next((one for one in self._loaded.values() if not one.users), None)

    async def _free_slot(self) -> None:
        """Unload an unused adapter if all slots are taken."""
        unused = self._unused()
        if len(self._loaded) < self._size_max or unused is None:
            return
        del self._loaded[unused.version]  # first: nobody may use it from now on
        await self._engine.remove(unused)
        unused.folder.release()

    def _remember_refusal(self, version: str, reason: str) -> None:
        """Refuse a version at once from now on: its files are what they are.

        Otherwise each of its items would evict an adapter that others use.
        """
        self._refused[version] = reason
        if len(self._refused) > _REFUSALS_MAX:
            self._refused.popitem(last=False)


def adapter_of(job: JobRef) -> str:
    """Return the version of the adapter that runs the items of a job; empty for the base model."""
    return job.model_version if job.base_version else ""
