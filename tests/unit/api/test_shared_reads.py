"""Goal: many requests share one read, and a slow read is not repeated every second."""

import asyncio
import gc
import weakref

import pytest

from api.runtime.shared_reads import SharedReads
from tests.support.clock import ManualClock


class Result(str):
    """A text to which a weak reference is possible."""


class Reads:
    """Counts the reads, each of which takes `duration_s`."""

    def __init__(self, duration_s: float = 0.0) -> None:
        self.clock, self.count, self._duration_s = ManualClock(), 0, duration_s
        self.failure: Exception | None = None
        self.shared = SharedReads(self._read, self.clock, keys_max=2)

    async def _read(self, key: str) -> Result:
        self.count += 1
        await asyncio.sleep(0)
        self.clock.advance(self._duration_s)
        if self.failure is not None:
            raise self.failure
        return Result(f"{key} {self.count}")


def test_requests_at_once_and_within_a_second_share_a_read() -> None:
    async def scenario() -> None:
        reads = Reads()
        both = await asyncio.gather(reads.shared.get("a"), reads.shared.get("a"))
        assert all(result == "a 1" for result in both)
        reads.clock.advance(0.9)
        assert await reads.shared.get("a") == "a 1"
        reads.clock.advance(0.2)
        assert await reads.shared.get("a") == "a 2"

    asyncio.run(scenario())


def test_a_slow_read_is_repeated_after_twenty_times_its_duration() -> None:
    async def scenario() -> None:
        reads = Reads(duration_s=0.5)
        await reads.shared.get("a")
        reads.clock.advance(9.9)
        await reads.shared.get("a")
        assert reads.count == 1
        reads.clock.advance(0.2)
        await reads.shared.get("a")
        assert reads.count == 2

    asyncio.run(scenario())


def test_a_failed_read_is_repeated_after_a_second_however_long_it_took() -> None:
    async def scenario() -> None:
        reads = Reads(duration_s=8.0)
        reads.failure = ConnectionError("away")
        for _ in range(2):  # the second shares the failure
            with pytest.raises(ConnectionError):
                await reads.shared.get("a")
        assert reads.count == 1
        reads.failure = None
        reads.clock.advance(1.1)
        assert await reads.shared.get("a") == "a 2"

    asyncio.run(scenario())


def test_old_results_are_dropped_when_another_key_is_read() -> None:
    async def scenario() -> None:
        reads = Reads()
        result = await reads.shared.get("a")
        kept = weakref.ref(result)
        del result
        reads.clock.advance(1.1)
        assert kept() is not None
        await reads.shared.get("b")
        gc.collect()
        assert kept() is None

    asyncio.run(scenario())


def test_the_oldest_key_is_dropped() -> None:
    async def scenario() -> None:
        reads = Reads()
        for key in ("a", "b", "c", "a"):
            await reads.shared.get(key)
        assert reads.count == 4
        await reads.shared.get("c")
        assert reads.count == 4

    asyncio.run(scenario())
