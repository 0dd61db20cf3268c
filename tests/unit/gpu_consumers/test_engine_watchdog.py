"""Goal: a process with a stuck engine or event loop exits; an idle process does not."""

import asyncio
import subprocess
import sys
from typing import cast

import pytest

from core.errors import EngineStalledError
from gpu_consumers import engine_watchdog
from gpu_consumers.engine_watchdog import watch_progress
from gpu_consumers.engines.engine import Engine, SlotCounts

STUCK = """
import asyncio, sys, time
from gpu_consumers.engine_watchdog import exit_when_stuck
async def main():
    async with exit_when_stuck(float(sys.argv[1])):
        await asyncio.sleep(0)
        if sys.argv[2] == "stuck":
            time.sleep(30)
        await asyncio.sleep(float(sys.argv[1]) * 2)
    time.sleep(float(sys.argv[1]) * 2)  # the watchdog is off
asyncio.run(main())
"""


class SlotsOnly:
    """An engine whose slot counts are set by a test."""

    slots = SlotCounts(0, 0, 0)


class CheckClock:
    """A clock that advances a second per check, and cancels the watch after some checks."""

    def __init__(self, checks: int) -> None:
        self.now_s, self._checks = 0.0, checks

    def monotonic_s(self) -> float:
        self.now_s += 1
        if self.now_s > self._checks:
            raise asyncio.CancelledError
        return self.now_s

    def wall_s(self) -> float:
        return 0.0


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watchdog, "CHECK_S", 0)


@pytest.mark.parametrize(
    ("bulk", "idle", "ends_every_s", "refuses_every_s", "is_stalled"),
    [
        (3, 0, 1000, 1000, True),
        (0, 3, 1000, 1000, True),
        (3, 0, 8, 1000, False),
        (3, 0, 1000, 8, False),  # an upstream that refuses items makes progress
        (0, 0, 1000, 1000, False),
    ],
)
async def test_an_engine_with_items_and_without_progress_is_stalled(
    bulk: int, idle: int, ends_every_s: int, refuses_every_s: int, is_stalled: bool
) -> None:
    engine, clock = SlotsOnly(), CheckClock(60)

    def ended_count() -> int:
        engine.slots = SlotCounts(bulk, 0, 0, idle, int(clock.now_s) // refuses_every_s)
        return int(clock.now_s) // ends_every_s

    with pytest.raises(EngineStalledError if is_stalled else asyncio.CancelledError):
        await watch_progress(cast(Engine, engine), ended_count, 10, clock)


@pytest.mark.parametrize(
    ("stuck_s_max", "state", "code"), [("0.2", "stuck", 1), ("0.5", "well", 0)]
)
def test_a_stuck_event_loop_exits_with_its_stacks(stuck_s_max: str, state: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STUCK, stuck_s_max, state],
        check=False,
        capture_output=True,
        timeout=20,
    )
    assert done.returncode == code
    assert (b"in main" in done.stderr) is (code == 1)
