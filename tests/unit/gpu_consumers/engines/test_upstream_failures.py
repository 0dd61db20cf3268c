"""Goal: a busy upstream gets fewer requests until it refuses none, and all of them again later."""

import asyncio

import pytest

from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.upstream_failures import (
    REFUSED_S_MAX,
    STATED_S_MAX,
    CongestionWindow,
    LoadRefusals,
)
from tests.support.clock import ManualClock

BUSY_S_MAX = 10.0


class Load:
    """Places, and an upstream that has answered once."""

    def __init__(self, total: int, *, headroom: int = 0, running: int = 0) -> None:
        self.clock, self.slots = ManualClock(100.0), EngineSlots(total, headroom)
        self.fraction = 1.0
        self.congestion = CongestionWindow(
            self.slots, busy_s_max=BUSY_S_MAX, clock=self.clock, random=lambda: self.fraction
        )
        self.congestion.record_answer()
        assert self.slots.acquire_bulk(running) == running

    def refuse(self, refusals: LoadRefusals | None = None, stated_s: float | None = None) -> float:
        """Refuse a bulk item; it leaves its place."""
        pause_s = self.congestion.record_refusal(
            refusals or LoadRefusals(), PoolBusyError(stated_s=stated_s)
        )
        self.slots.release_bulk(1)
        return pause_s

    def room(self) -> int:
        """Return how many bulk items may run at once."""
        running = self.slots.counts.bulk
        taken = self.slots.acquire_bulk(self.slots.total)
        self.slots.release_bulk(taken)
        return running + taken


async def test_window_shrinks_to_the_requests_in_flight() -> None:
    load = Load(256, running=256)
    for _ in range(192):
        load.refuse()
    assert load.room() == load.slots.counts.bulk == 64


async def test_window_grows_faster_each_round_up_to_its_maximum() -> None:
    load = Load(80, headroom=16, running=64)
    for _ in range(56):
        load.refuse()
    rooms = [load.room()]
    for _ in range(5):
        for _ in range(rooms[-1]):
            load.congestion.record_answer()
        rooms.append(load.room())
    assert rooms == [8, 9, 11, 16, 32, 64]


async def test_repeated_refusals_of_one_item_barely_shrink_the_window() -> None:
    load = Load(64, running=64)
    refusals = LoadRefusals()
    for _ in range(50):
        load.refuse(refusals)
        assert load.slots.acquire_bulk(1) <= 1
        for _ in range(20):  # fewer than a round
            load.congestion.record_answer()
    assert load.room() == 64


async def test_refusal_restarts_the_growth_round() -> None:
    load = Load(16, running=16)
    load.refuse()
    for _ in range(10):
        for _ in range(14):
            load.congestion.record_answer()
        assert load.room() == 15
        load.refuse()
        load.slots.acquire_bulk(1)
        assert load.room() == 14
        for _ in range(14):
            load.congestion.record_answer()
        assert load.room() == load.slots.acquire_bulk(1) + 14 == 15


async def test_pauses_back_off_exponentially_with_jitter() -> None:
    load = Load(4, running=4)
    refusals = LoadRefusals()
    pauses = []
    for _ in range(9):
        pauses.append(load.congestion.record_refusal(refusals, PoolBusyError()))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    load.fraction = 0.0
    assert load.congestion.record_refusal(refusals, PoolBusyError()) == 2.5


@pytest.mark.parametrize(("stated_s", "wanted"), [(3.0, 3.0), (0.0, 0.1), (999.0, STATED_S_MAX)])
async def test_retry_after_sets_the_pause(stated_s: float, wanted: float) -> None:
    assert Load(4, running=4).refuse(stated_s=stated_s) == wanted


async def test_busy_upstream_is_unavailable_without_answers_and_requests_in_flight() -> None:
    load = Load(4, running=2)
    load.clock.now_s += 10 * BUSY_S_MAX  # with nothing to ask
    load.refuse()  # another runs
    assert load.refuse() > 0  # for the first time since something was answered, however long ago
    assert load.room() == 0  # until the pause is over
    load.congestion.record_answer()
    assert load.slots.acquire_bulk(1) == 1
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    load.clock.now_s += BUSY_S_MAX + 1
    with pytest.raises(PoolUnavailableError) as raised:
        load.congestion.record_refusal(LoadRefusals(), PoolBusyError(status_code=503))
    assert type(raised.value) is PoolUnavailableError
    assert raised.value.facts == {"status_code": 503}


async def test_retry_after_does_not_count_as_unavailable() -> None:
    load = Load(4, running=1)
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0))
    load.clock.now_s += 31
    assert load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0)) == 30
    load.clock.now_s += 31
    with pytest.raises(PoolUnavailableError):
        load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0))


async def test_upstream_without_any_answer_is_unavailable_at_once() -> None:
    slots = EngineSlots(4)
    congestion = CongestionWindow(
        slots, busy_s_max=BUSY_S_MAX, clock=ManualClock(100.0), random=lambda: 1.0
    )
    assert slots.acquire_bulk(1) == 1
    with pytest.raises(PoolUnavailableError):
        congestion.record_refusal(LoadRefusals(), PoolBusyError())


async def test_paused_calls_are_not_in_flight() -> None:
    load = Load(4)
    await load.slots.acquire_online()
    await load.slots.acquire_online()
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    load.clock.now_s += BUSY_S_MAX + 1
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    with load.congestion.paused_call(), pytest.raises(PoolUnavailableError):
        load.congestion.record_refusal(LoadRefusals(), PoolBusyError())


async def test_refused_call_shrinks_the_window_only_with_bulk_in_flight() -> None:
    load = Load(9, headroom=1)
    await load.slots.acquire_online()
    await load.slots.acquire_online()
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    assert load.slots.acquire_bulk(9) == 6
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    load.slots.release_bulk(6)
    assert load.room() == 5


async def test_item_refused_for_too_long_raises_pool_busy() -> None:
    load = Load(4, running=4)
    refusals = LoadRefusals()
    load.congestion.record_refusal(refusals, PoolBusyError())
    load.clock.now_s += REFUSED_S_MAX + 1
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    with pytest.raises(PoolBusyError):  # which says that the pool is there
        load.congestion.record_refusal(refusals, PoolBusyError())
    assert load.slots.counts.refused == 3


async def test_bulk_pauses_after_all_requests_were_refused() -> None:
    load = Load(8, running=1)
    hired = asyncio.Event()
    load.slots.on_bulk_available = hired.set
    load.refuse()
    assert load.room() == 0
    await asyncio.wait_for(hired.wait(), 20)
    assert load.room() == 1


async def test_answer_ends_the_bulk_pause() -> None:
    load = Load(8, running=1)
    load.refuse(stated_s=STATED_S_MAX)
    assert load.room() == 0
    load.congestion.record_answer()  # to an online call
    assert load.room() == 2
