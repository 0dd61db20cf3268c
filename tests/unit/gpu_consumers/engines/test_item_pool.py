"""Goal: calls share the slots fairly, and none leaks a slot or an item."""

import asyncio

import pytest

from core.errors import EngineDeadError
from gpu_consumers.engines.engine import EngineAnswer, SlotCounts
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.item_pool import PREEMPTION_WAIT_S, PREEMPTIONS_MAX, ItemPool
from tests.unit.gpu_consumers.fakes import run_loop


class Runner:
    """Runs an item until its gate opens; counts what runs at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.running = 0
        self.running_max = 0
        self.bodies: list[bytes] = []

    async def __call__(self, endpoint: str, body: bytes) -> EngineAnswer:
        self.bodies.append(body)
        self.running += 1
        self.running_max = max(self.running, self.running_max)
        try:
            await self.gate.wait()
            if body == b"dead":
                raise EngineDeadError
            return EngineAnswer(200, body)
        finally:
            self.running -= 1


async def test_concurrency_limit_is_shared_oldest_call_first() -> None:
    runner = Runner()
    pool = ItemPool(runner, EngineSlots(3))
    calls = [
        asyncio.create_task(pool.execute("/", [name] * 4, lambda *_: None)) for name in (b"a", b"b")
    ]
    await run_loop()
    assert runner.bodies == [b"a"] * 3
    runner.gate.set()
    await asyncio.gather(*calls)
    assert runner.bodies == [b"a"] * 4 + [b"b"] * 4
    assert runner.running_max == 3


async def test_cancelled_call_cancels_only_its_items() -> None:
    runner = Runner()
    pool = ItemPool(runner, EngineSlots(4))
    reported: list[bytes] = []
    first = asyncio.create_task(pool.execute("/", [b"a"] * 3, lambda *_: reported.append(b"a")))
    second = asyncio.create_task(pool.execute("/", [b"b"] * 3, lambda *_: reported.append(b"b")))
    await run_loop()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await run_loop()
    assert runner.running == 3  # all of b's, two of them in the freed places
    runner.gate.set()
    await second
    assert reported == [b"b"] * 3


async def test_call_cancelled_twice_releases_its_slots() -> None:
    may_let_go = asyncio.Event()

    async def run(endpoint: str, body: bytes) -> EngineAnswer:
        if body == b"a":
            try:
                await asyncio.Event().wait()
            finally:
                await may_let_go.wait()
        return EngineAnswer(200, body)

    slots = EngineSlots(2)
    pool = ItemPool(run, slots)
    first = asyncio.create_task(pool.execute("/", [b"a"] * 4, lambda *_: None))
    second = asyncio.create_task(pool.execute("/", [b"b"] * 3, lambda *_: None))
    await run_loop()
    for _ in range(2):
        first.cancel()
        await run_loop()
    assert first.cancelled()
    may_let_go.set()
    await asyncio.wait_for(second, 20)
    assert slots.counts == SlotCounts(0, 0, 0)


async def test_items_waiting_for_slots_are_not_idle() -> None:
    slots = EngineSlots(2)
    pool = ItemPool(Runner(), slots)
    call = asyncio.create_task(pool.execute("/", [b"x"] * 3, lambda *_: None))
    await run_loop()
    assert slots.counts == SlotCounts(bulk=2, online=0, waiting=0, idle=0)
    slots.release_bulk(1)  # without notification
    assert slots.counts.idle == 1
    slots.acquire_bulk(1)
    call.cancel()
    await asyncio.wait([call])


async def test_failure_ends_its_call_and_cancels_the_rest() -> None:
    runner = Runner()
    pool = ItemPool(runner, EngineSlots(2))
    reported: list[int] = []
    runner.gate.set()
    with pytest.raises(EngineDeadError):
        await pool.execute("/", [b"x", b"dead", b"x", b"x"], lambda i, _: reported.append(i))
    assert runner.running == 0
    count = len(reported)
    await run_loop()
    assert len(reported) == count < 4
    await pool.execute("/", [b"x"] * 5, lambda i, _: reported.append(i))
    assert len(reported) == count + 5


async def test_one_slot_serves_many_calls() -> None:
    runner = Runner()
    runner.gate.set()
    pool = ItemPool(runner, EngineSlots(1))
    for _ in range(100):
        await asyncio.wait_for(pool.execute("/", [b"x"], lambda *_: None), 1)


async def test_failing_callback_fails_its_call() -> None:
    runner = Runner()
    runner.gate.set()

    def finished(index: int, answer: EngineAnswer) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ItemPool(runner, EngineSlots(2)).execute("/", [b"x"], finished)


async def wait_for_slot(slots: EngineSlots) -> None:
    """Run an online call that ends as soon as it has a slot."""
    await slots.acquire_online()
    slots.release_online()


async def test_the_newest_item_is_aborted_for_an_online_call_that_waits() -> None:
    runner, slots, reported = Runner(), EngineSlots(2), list[int]()
    pool = ItemPool(runner, slots, preempts=True)
    items = asyncio.create_task(
        pool.execute("/", [b"old", b"new"], lambda index, _: reported.append(index))
    )
    await run_loop()
    await asyncio.wait_for(wait_for_slot(slots), 20)
    await run_loop()
    assert runner.bodies == [b"old", b"new", b"new"]
    runner.gate.set()
    await items
    assert sorted(reported) == [0, 1]
    assert slots.counts == SlotCounts(0, 0, 0)


async def test_an_item_is_aborted_twice_at_most() -> None:
    runner, slots = Runner(), EngineSlots(1)
    pool = ItemPool(runner, slots, preempts=True)
    items = asyncio.create_task(pool.execute("/", [b"item"], lambda *_: None))
    await run_loop()
    for _ in range(PREEMPTIONS_MAX):
        await asyncio.wait_for(wait_for_slot(slots), 20)
        await run_loop()
    call = asyncio.create_task(wait_for_slot(slots))
    await asyncio.sleep(2 * PREEMPTION_WAIT_S)
    assert not call.done()
    assert runner.bodies == [b"item"] * (1 + PREEMPTIONS_MAX)
    runner.gate.set()
    await asyncio.gather(items, call)


async def test_no_item_is_aborted_for_a_call_that_found_a_slot_meanwhile() -> None:
    runner, slots = Runner(), EngineSlots(2)
    pool = ItemPool(runner, slots, preempts=True)
    first = asyncio.create_task(pool.execute("/", [b"short"], lambda *_: None))
    second = asyncio.create_task(pool.execute("/", [b"long"], lambda *_: None))
    await run_loop()
    call = asyncio.create_task(wait_for_slot(slots))
    await run_loop()
    first.cancel()  # its slot goes to the call
    await asyncio.wait_for(call, 20)
    await asyncio.sleep(2 * PREEMPTION_WAIT_S)
    assert runner.bodies == [b"short", b"long"]
    runner.gate.set()
    await second


async def test_an_execution_that_is_cancelled_awaits_the_end_of_a_preempted_item() -> None:
    ended, may_end = asyncio.Event(), asyncio.Event()

    async def run(endpoint: str, body: bytes) -> EngineAnswer:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ended.set()
        raise AssertionError

    slots = EngineSlots(1)
    pool = ItemPool(run, slots, preempts=True)
    items = asyncio.create_task(pool.execute("/", [b"item"], lambda *_: None))
    await run_loop()
    call = asyncio.create_task(wait_for_slot(slots))
    await asyncio.sleep(2 * PREEMPTION_WAIT_S)
    items.cancel()  # while the item is being aborted
    await run_loop()
    assert not items.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await items
    assert ended.is_set()
    await asyncio.wait_for(call, 20)
    assert slots.counts == SlotCounts(0, 0, 0)


async def test_items_keep_their_slot_unless_the_pool_preempts() -> None:
    runner, slots = Runner(), EngineSlots(1)
    items = asyncio.create_task(ItemPool(runner, slots).execute("/", [b"item"], lambda *_: None))
    await run_loop()
    call = asyncio.create_task(wait_for_slot(slots))
    await asyncio.sleep(2 * PREEMPTION_WAIT_S)
    assert runner.bodies == [b"item"]
    runner.gate.set()
    await asyncio.gather(items, call)
