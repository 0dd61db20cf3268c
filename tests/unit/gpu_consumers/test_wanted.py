"""Goal: nothing begins, and nothing useless runs on, once a job is closed or past its deadline."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest

from core.errors import EngineDeadError
from gpu_consumers.cancellation.liveness import LATE_S_MAX, LOOK_S, Cutting, Wanted
from gpu_consumers.engines.engine import Finished
from tests.unit.gpu_consumers.attempts import Attempts
from tests.unit.gpu_consumers.bulk_bench import Life, Log, TouchyEngine, batch_of, delivery
from topics.records.records import Batch, JobControl

JOB = UUID(int=1)
OTHER = UUID(int=2)


class HeldClock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return 1e12


class SlowToLetGo(TouchyEngine):
    """An engine that goes on for a while after a cancellation."""

    def __init__(self) -> None:
        super().__init__()
        self.may_let_go = asyncio.Event()
        self.held = 0

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        self.held += 1
        try:
            await super().execute(endpoint, bodies, finished)
        finally:
            try:
                await self.may_let_go.wait()
            finally:
                self.held -= 1


class Bench:
    """A lane whose clock stands still and whose batchers said that it is 1,000,000."""

    def __init__(self, engine: TouchyEngine | None = None) -> None:
        self.life = Life(Log(), Attempts(), engine or TouchyEngine())
        self.clock = HeldClock()
        self.life.time.heard(1_000_000.0, monotonic_s=100.0)
        self.wanted = Wanted(self.life.closed, self.life.time, self.clock)  # type: ignore[arg-type]
        self.life.execution._wanted = self.wanted
        self.cutting = Cutting(lambda: self.life.execution.runs, self.wanted)

    async def hold(self, batch: Batch, *, old: bool = False) -> None:
        """Begin a batch and return when its engine holds it."""
        self.life.engine.hold.clear()
        self.life.lane.begin(delivery(batch, old=old))
        async with asyncio.timeout(5):
            await self.life.engine.holds.wait()

    async def outcome(self) -> tuple[list[int], list[int], list[int]]:
        """Indexes that were answered, put back, and offsets that may be committed."""
        assert await self.life.end() is None
        log = self.life.log
        return [o.index for o in log.outcomes], log.put_back, self.life.consumer.offsets


def with_deadline(batch: Batch, deadline_s: float) -> Batch:
    parts = [
        msgspec.structs.replace(part, job=msgspec.structs.replace(part.job, deadline_s=deadline_s))
        for part in batch.parts
    ]
    return msgspec.structs.replace(batch, parts=parts)


def mixed(deadline_s: float) -> Batch:
    """A batch of two jobs; the first has the deadline, the second an hour."""
    first = with_deadline(batch_of(b"one", b"hold"), deadline_s)
    second = with_deadline(batch_of(b"hold", b"three", job_number=2), 1_003_600.0)
    return msgspec.structs.replace(first, parts=first.parts + second.parts)


async def test_an_item_past_its_deadline_never_begins() -> None:
    bench = Bench()
    bench.life.lane.begin(delivery(with_deadline(batch_of(b"a"), 1_000_000.0 + LATE_S_MAX / 2)))
    assert await bench.outcome() == ([], [], [0])
    assert bench.life.engine.runs == []
    assert bench.life.capacity.in_flight == 0


async def test_an_item_before_its_deadline_begins() -> None:
    bench = Bench()
    bench.life.lane.begin(delivery(with_deadline(batch_of(b"a"), 1_000_001.0)))
    assert await bench.outcome() == ([0], [], [0])


async def test_a_later_deadline_is_heard_of() -> None:
    bench = Bench()
    bench.life.closed.controls[JOB] = JobControl(JOB, 3, deadline_s=1_000_060.0)
    bench.life.lane.begin(delivery(with_deadline(batch_of(b"a"), 999_999.0)))
    assert await bench.outcome() == ([0], [], [0])


async def test_without_a_known_time_nothing_expires() -> None:
    life = Life(Log(), Attempts(), TouchyEngine())
    life.lane.begin(delivery(batch_of(b"a")))
    assert await life.end() is None
    assert [o.index for o in life.log.outcomes] == [0]


async def test_void_items_do_not_begin_and_running_ones_go_on() -> None:
    bench = Bench()
    await bench.hold(with_deadline(batch_of(b"a", b"hold"), 1_000_060.0))
    bench.life.closed.controls[JOB] = JobControl(JOB, 1, void_below=1, deadline_s=1_000_060.0)
    bench.life.lane.begin(delivery(with_deadline(batch_of(b"b"), 1_000_060.0), offset=1))
    bench.cutting.look()
    await asyncio.sleep(0)
    assert bench.life.engine.running == 1
    bench.life.engine.hold.set()
    assert await bench.outcome() == ([0, 1], [], [1, 0])


async def test_a_deadline_cuts_what_runs_and_keeps_what_is_answered() -> None:
    bench = Bench()
    await bench.hold(with_deadline(batch_of(b"a", b"hold", b"c"), 1_000_001.0))
    wait_s = bench.cutting.look()
    assert 0 < wait_s <= LOOK_S
    bench.clock.now_s += 1.0
    bench.cutting.look()
    assert await bench.outcome() == ([0], [], [0])


async def test_a_close_cuts_what_runs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The news of it alone: the next look would come an hour later."""
    monkeypatch.setattr("gpu_consumers.cancellation.liveness.LOOK_S", 3600.0)
    bench = Bench()
    await bench.hold(with_deadline(batch_of(b"a", b"hold", b"c"), 1_003_600.0))
    watching = asyncio.create_task(bench.cutting.watch())
    await asyncio.sleep(0)
    bench.life.closed.closed.add(JOB)
    bench.cutting.changed()
    async with asyncio.timeout(10):
        assert await bench.outcome() == ([0], [], [0])
    watching.cancel()


async def test_a_batch_ends_when_its_engine_has_let_go_of_all_of_it() -> None:
    engine = SlowToLetGo()
    bench = Bench(engine)
    await bench.hold(mixed(1_000_001.0))
    bench.clock.now_s += 1.0
    try:
        for cut in (bench.cutting.look, bench.cutting.look, bench.life.lane.hand_back):
            cut()
            for _ in range(5):
                await asyncio.sleep(0)
            assert engine.held == 2
    finally:
        engine.may_let_go.set()
    assert await bench.outcome() == ([0], [0, 1], [0])


@pytest.mark.parametrize("old", [False, True])
async def test_what_others_have_in_the_batch_runs_on(old: bool) -> None:
    bench = Bench()
    await bench.hold(mixed(1_000_001.0), old=old)
    await asyncio.sleep(0)
    bench.clock.now_s += 1.0
    bench.cutting.look()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert bench.life.engine.running == 1  # that of the other job
    assert bench.life.capacity.in_flight == 2  # its items: what is given up takes no credit
    bench.life.engine.hold.set()
    answered, put_back, offsets = await bench.outcome()
    assert ([*answered[:1], *sorted(answered[1:])], put_back, offsets) == ([0, 0, 1], [], [0])
    assert bench.life.capacity.in_flight == 0


async def test_a_batch_of_which_nobody_wants_anything_ends_at_once() -> None:
    bench = Bench()
    await bench.hold(mixed(1_000_001.0))
    bench.life.closed.closed |= {JOB, OTHER}
    bench.cutting.look()
    assert await bench.outcome() == ([0], [], [0])
    assert bench.life.engine.running == 0


async def test_what_ends_the_process_ends_what_others_have_in_the_batch() -> None:
    bench = Bench()
    crashing = with_deadline(batch_of(b"crash", job_number=3), 1_003_600.0).parts
    both = mixed(1_000_060.0)
    await bench.hold(msgspec.structs.replace(both, parts=both.parts + crashing))
    assert isinstance(await bench.life.end(), EngineDeadError)
    assert bench.life.engine.running == 0
    assert bench.life.consumer.offsets == []
