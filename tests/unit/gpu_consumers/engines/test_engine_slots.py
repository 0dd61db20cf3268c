"""Goal: online calls come first, bulk leaves the headroom free, and no slot is lost."""

import asyncio
import random

import pytest

from gpu_consumers.engines.engine import EngineAnswer, SlotCounts
from gpu_consumers.engines.engine_slots import EngineSlots, scheduler_priority, square_root_headroom
from gpu_consumers.engines.item_pool import ItemPool


@pytest.mark.parametrize(
    ("total", "headroom"), [(1, 0), (2, 1), (3, 2), (4, 2), (16, 4), (64, 8), (160, 13)]
)
def test_headroom_is_the_square_root_of_the_slots(total: int, headroom: int) -> None:
    assert square_root_headroom(total) == headroom


@pytest.mark.parametrize(("online", "bulk"), [(0, 147), (64, 80), (100, 35), (127, 1), (128, 0)])
async def test_no_item_queues_in_an_engine_full_of_online_calls(online: int, bulk: int) -> None:
    slots = EngineSlots(160, 13, running_max=128)
    for _ in range(online):
        await slots.acquire_online()
    assert slots.acquire_bulk(200) == bulk


async def test_bulk_waits_until_more_than_the_headroom_is_free() -> None:
    slots = EngineSlots(8, 3)
    for _ in range(4):
        await slots.acquire_online()
    assert slots.acquire_bulk(10) == 1
    slots.release_online()
    assert slots.acquire_bulk(10) == 1


async def test_online_calls_go_ahead_of_bulk_in_order() -> None:
    slots = EngineSlots(3, 1)
    assert slots.acquire_bulk(5) == 2
    order: list[int] = []

    async def call(number: int) -> None:
        await slots.acquire_online()
        order.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert slots.counts == SlotCounts(bulk=2, online=1, waiting=2)
    assert not slots.reacquire_bulk()  # to the second call
    assert slots.counts == SlotCounts(bulk=1, online=2, waiting=1)
    slots.release_bulk(1)
    await asyncio.gather(*calls)
    assert order == [0, 1, 2]
    assert slots.counts == SlotCounts(bulk=0, online=3, waiting=0)


@pytest.mark.parametrize("in_the_same_turn", [False, True])
async def test_cancelled_call_leaks_no_slot(in_the_same_turn: bool) -> None:
    slots = EngineSlots(1)
    await slots.acquire_online()
    waiting = asyncio.create_task(slots.acquire_online())
    await asyncio.sleep(0)
    if in_the_same_turn:
        slots.release_online()  # the place is the waiting call's, which is then cancelled
        waiting.cancel()
    else:
        waiting.cancel()
        slots.release_online()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slots.counts == SlotCounts(0, 0, 0)
    assert slots.acquire_bulk(2) == 1


async def test_bulk_is_notified_of_released_slots() -> None:
    slots = EngineSlots(4, 2)
    heard: list[int] = []
    slots.on_bulk_available = lambda: heard.append(slots.acquire_bulk(4))
    for _ in range(3):
        await slots.acquire_online()
    slots.release_online()
    assert heard == []
    slots.release_online()
    assert heard == [1]


@pytest.mark.parametrize("seed", range(20))
async def test_all_slots_are_released_in_any_order_of_events(seed: int) -> None:
    chance = random.Random(seed)
    total = chance.randint(2, 6)
    slots = EngineSlots(total, chance.randint(0, total - 1))
    running = {"bulk": 0, "online": 0}

    async def hold(kind: str) -> None:
        running[kind] += 1
        assert sum(running.values()) <= total
        if kind == "bulk":
            assert running["bulk"] <= total - slots.headroom
        try:
            for _ in range(chance.randint(0, 4)):
                await asyncio.sleep(0)
        finally:
            running[kind] -= 1

    async def item(_: str, __: bytes) -> EngineAnswer:
        await hold("bulk")
        return EngineAnswer(200, b"")

    async def call() -> None:
        await slots.acquire_online()
        try:
            await hold("online")
        finally:
            slots.release_online()

    pool = ItemPool(item, slots)
    calls: list[asyncio.Task[None]] = []
    for _ in range(60):
        work = call() if chance.random() < 0.6 else pool.execute("/", [b""] * 5, lambda *_: None)
        calls.append(asyncio.create_task(work))
        if chance.random() < 0.3:
            chance.choice(calls).cancel()
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await asyncio.gather(*calls, return_exceptions=True)
    assert slots.counts == SlotCounts(0, 0, 0)
    assert slots.acquire_bulk(total) == total - slots.headroom


def test_items_follow_calls_in_requested_order_and_small_calls_are_equal() -> None:
    requested = [-(2**31), -1, 0, 1, 2**31]
    items = [scheduler_priority(priority, is_bulk=True) for priority in requested]
    assert items == sorted(items)
    large = scheduler_priority(0, is_bulk=False, is_large=True)
    assert min(items) > large > 0
    assert {scheduler_priority(priority, is_bulk=False) for priority in requested} == {0}
