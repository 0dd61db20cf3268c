"""Goal: an adapter is loaded once, never evicted while used, and its folder is held meanwhile."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.errors import PoolBusyError
from gpu_consumers.adapters.adapter_slots import (
    AdapterRefusedError,
    AdapterSlots,
    LoadedAdapter,
)
from tests.unit.gpu_consumers.fakes import run_loop


@dataclass
class Folder:
    held: Counter[str]
    version: str

    @property
    def path(self) -> Path:
        return Path("/adapters") / self.version

    def release(self) -> None:
        self.held[self.version] -= 1


class Engine:
    """Knows adapters as vLLM does; fails if it knows too many, or loses one that is used."""

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        self.known: dict[int, str] = {}
        self.numbers: list[int] = []
        self.held: Counter[str] = Counter()
        self.staged: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def stage(self, version: str) -> Folder:
        self.staged.append(version)
        await self.gate.wait()
        self.held[version] += 1
        return Folder(self.held, version)

    async def add(self, adapter: LoadedAdapter) -> None:
        await asyncio.sleep(0)
        if adapter.version.startswith("bad"):
            raise AdapterRefusedError("It is bad.")
        self.known[adapter.number] = adapter.version
        self.numbers.append(adapter.number)
        assert len(self.known) <= self.size_max
        assert self.held[adapter.version] > 0

    async def remove(self, adapter: LoadedAdapter) -> None:
        assert adapter.users == 0
        assert self.held[adapter.version] > 0
        del self.known[adapter.number]
        await asyncio.sleep(0)


def slots_of(size_max: int, wait_s_max: float = 1e6) -> tuple[AdapterSlots, Engine]:
    engine = Engine(size_max)
    return AdapterSlots(size_max, engine.stage, engine, wait_s_max=wait_s_max), engine


async def use(slots: AdapterSlots, version: str) -> None:
    async with slots.use(version):
        pass


async def test_concurrent_users_load_an_adapter_once() -> None:
    slots, engine = slots_of(2)
    engine.gate.clear()
    users = [asyncio.create_task(use(slots, "a")) for _ in range(5)]
    await run_loop()
    users[0].cancel()  # the load goes on for the others
    engine.gate.set()
    ended = await asyncio.gather(*users, return_exceptions=True)
    assert engine.staged == ["a"]
    assert [type(one) for one in ended] == [asyncio.CancelledError, *[type(None)] * 4]
    assert slots.versions == ["a"]


async def test_least_recently_used_adapter_makes_place_and_its_folder_is_released() -> None:
    slots, engine = slots_of(2)
    for version in ("a", "b", "a", "c"):
        await use(slots, version)
    assert slots.versions == ["a", "c"]
    assert +engine.held == Counter(a=1, c=1)
    await use(slots, "b")
    assert engine.numbers == [1, 2, 3, 4]  # a new load has a new number
    await slots.close()
    assert +engine.held == Counter()


async def test_adapter_in_use_is_not_evicted() -> None:
    slots, engine = slots_of(1)
    async with slots.use("a"):
        waiting = asyncio.create_task(use(slots, "b"))
        await run_loop()
        assert set(engine.known.values()) == {"a"}
    await waiting
    assert slots.versions == ["b"]


async def test_items_are_requeued_when_no_slot_becomes_free() -> None:
    slots, engine = slots_of(1, wait_s_max=0)
    async with slots.use("a"):
        with pytest.raises(PoolBusyError):
            await use(slots, "b")
    await use(slots, "b")
    assert +engine.held == Counter(b=1)


async def test_refused_adapter_fails_its_items_and_evicts_nothing_again() -> None:
    slots, engine = slots_of(1)
    for _ in range(3):
        with pytest.raises(AdapterRefusedError, match="bad"):
            await use(slots, "bad")
        await use(slots, "a")
    assert engine.staged == ["bad", "a"]
    assert engine.numbers == [2]
    assert +engine.held == Counter(a=1)


async def test_replica_without_adapters_refuses_them() -> None:
    slots, engine = slots_of(0)
    with pytest.raises(AdapterRefusedError, match="adapters_max"):
        await use(slots, "a")
    assert engine.staged == []


async def test_many_users_of_many_adapters_never_exceed_the_slots() -> None:
    slots, engine = slots_of(3)

    async def work(number: int) -> None:
        async with AsyncExitStack() as stack:
            version = f"{number * 7 % 10}"
            adapter = await stack.enter_async_context(slots.use(version))
            await run_loop(number % 5)
            assert engine.known[adapter.number] == version

    await asyncio.gather(*(work(number) for number in range(100)))
    assert +engine.held == Counter(slots.versions)
