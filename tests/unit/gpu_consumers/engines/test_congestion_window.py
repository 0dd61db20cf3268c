"""Goal: a busy upstream gets less at once until it refuses nothing, and all of it again later."""

import asyncio
from dataclasses import dataclass

import pytest

from core.errors import PoolBusyError, PoolUnavailableError
from gpu_consumers.engines.engine_slots import EngineSlots
from gpu_consumers.engines.openai_http.congestion_window import (
    REFUSED_S_MAX,
    STATED_S_MAX,
    CongestionWindow,
    LoadRefusals,
)

BUSY_S_MAX = 10.0


@dataclass
class StillClock:
    now_s: float = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


class Load:
    """Places, and an upstream that has answered once."""

    def __init__(self, total: int, *, headroom: int = 0, running: int = 0) -> None:
        self.clock, self.slots = StillClock(), EngineSlots(total, headroom)
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


async def test_what_was_not_refused_is_the_room() -> None:
    load = Load(256, running=256)
    for _ in range(192):
        load.refuse()
    assert load.room() == load.slots.counts.bulk == 64


async def test_the_room_grows_faster_each_round_until_all_is_back() -> None:
    load = Load(80, headroom=16, running=64)
    for _ in range(56):
        load.refuse()
    rooms = [load.room()]
    for _ in range(5):
        for _ in range(rooms[-1]):
            load.congestion.record_answer()
        rooms.append(load.room())
    assert rooms == [8, 9, 11, 16, 32, 64]


async def test_one_item_that_is_always_refused_says_little_of_the_room() -> None:
    load = Load(64, running=64)
    refusals = LoadRefusals()
    for _ in range(50):
        load.refuse(refusals)
        assert load.slots.acquire_bulk(1) <= 1
        for _ in range(20):  # fewer than a round
            load.congestion.record_answer()
    assert load.room() == 64


async def test_a_refusal_begins_the_round_anew() -> None:
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


async def test_pauses_double_are_spread_and_end() -> None:
    load = Load(4, running=4)
    refusals = LoadRefusals()
    pauses = []
    for _ in range(9):
        pauses.append(load.congestion.record_refusal(refusals, PoolBusyError()))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    load.fraction = 0.0
    assert load.congestion.record_refusal(refusals, PoolBusyError()) == 2.5


@pytest.mark.parametrize(("stated_s", "wanted"), [(3.0, 3.0), (0.0, 0.1), (999.0, STATED_S_MAX)])
async def test_an_upstream_may_name_the_wait(stated_s: float, wanted: float) -> None:
    assert Load(4, running=4).refuse(stated_s=stated_s) == wanted


async def test_busy_means_away_when_nothing_is_answered_and_nothing_runs() -> None:
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


async def test_a_stated_wait_is_no_absence() -> None:
    load = Load(4, running=1)
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0))
    load.clock.now_s += 31
    assert load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0)) == 30
    load.clock.now_s += 31
    with pytest.raises(PoolUnavailableError):
        load.congestion.record_refusal(LoadRefusals(), PoolBusyError(stated_s=30.0))


async def test_one_that_answered_nothing_yet_is_away_at_once() -> None:
    slots = EngineSlots(4)
    congestion = CongestionWindow(
        slots, busy_s_max=BUSY_S_MAX, clock=StillClock(), random=lambda: 1.0
    )
    assert slots.acquire_bulk(1) == 1
    with pytest.raises(PoolUnavailableError):
        congestion.record_refusal(LoadRefusals(), PoolBusyError())


async def test_calls_that_pause_are_nothing_that_runs() -> None:
    load = Load(4)
    await load.slots.acquire_online()
    await load.slots.acquire_online()
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    load.clock.now_s += BUSY_S_MAX + 1
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    with load.congestion.paused_call(), pytest.raises(PoolUnavailableError):
        load.congestion.record_refusal(LoadRefusals(), PoolBusyError())


async def test_a_refused_call_takes_no_room_of_bulk_that_has_none() -> None:
    load = Load(9, headroom=1)
    await load.slots.acquire_online()
    await load.slots.acquire_online()
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    assert load.slots.acquire_bulk(9) == 6
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    load.slots.release_bulk(6)
    assert load.room() == 5


async def test_an_item_that_is_always_refused_goes_back() -> None:
    load = Load(4, running=4)
    refusals = LoadRefusals()
    load.congestion.record_refusal(refusals, PoolBusyError())
    load.clock.now_s += REFUSED_S_MAX + 1
    load.congestion.record_refusal(LoadRefusals(), PoolBusyError())
    with pytest.raises(PoolBusyError):  # which says that the pool is there
        load.congestion.record_refusal(refusals, PoolBusyError())
    assert load.slots.counts.refused == 3


async def test_after_a_refusal_of_all_nothing_new_is_asked_until_its_pause_is_over() -> None:
    load = Load(8, running=1)
    hired = asyncio.Event()
    load.slots.on_bulk_available = hired.set
    load.refuse()
    assert load.room() == 0
    await asyncio.wait_for(hired.wait(), 5)
    assert load.room() == 1


async def test_an_answer_ends_the_rest() -> None:
    load = Load(8, running=1)
    load.refuse(stated_s=STATED_S_MAX)
    assert load.room() == 0
    load.congestion.record_answer()  # to an online call
    assert load.room() == 2
