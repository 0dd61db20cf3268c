"""Goal: shutdown waits for everything that may hang at the same time, not one after the other."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from api.online.online_runtime import OnlineRuntime
from api.runtime.database import DatabaseUnavailableError


class Part:
    """A tail or the producer, which notes what it is asked for."""

    def __init__(self, steps: list[str]) -> None:
        self._steps = steps

    def request_stop(self) -> None:
        self._steps.append("told")

    def stop(self) -> None:
        self._steps.append("waited for")

    def close(self, _timeout_s: float) -> None:
        self._steps.append("flushed")


def test_all_tail_threads_are_asked_to_stop_before_the_first_join() -> None:
    steps: list[str] = []
    online: Any = OnlineRuntime.__new__(OnlineRuntime)
    online._producer = part = Part(steps)
    online._tails = (part, part, part)
    online._close()
    assert steps == [*["told"] * 3, "flushed", *["waited for"] * 3]


@pytest.mark.parametrize("is_away", [False, True])
async def test_keys_are_destroyed_while_hits_are_billed(*, is_away: bool) -> None:
    destroyed = asyncio.Event()

    async def bill(_: object) -> None:
        if is_away:
            raise DatabaseUnavailableError
        await destroyed.wait()

    async def stop() -> None:
        destroyed.set()

    online: Any = OnlineRuntime.__new__(OnlineRuntime)
    online.cache = SimpleNamespace(bill=bill)
    online.call_keys = SimpleNamespace(stop=stop)
    online.services = SimpleNamespace(database=None)
    async with asyncio.timeout(1):  # a bill that came first would take 3 s
        await online._clean_up()
    assert destroyed.is_set()
