"""Goal: an item ends at its timeout or with its caller, even if its engine ignores cancellation."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import pytest

from core.errors import EngineStalledError
from gpu_consumers.engines.item_timeout import ItemTimeout

LONG_S = 3600.0


class Work:
    """Works until it is cancelled, and then ends in a way of its own."""

    def __init__(self, last_words: str | Exception | None) -> None:
        self.began = asyncio.Event()
        self.ended = False
        self._last_words = last_words

    async def __call__(self) -> str:
        self.began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            self.ended = True
            if isinstance(self._last_words, Exception):
                raise self._last_words from None
            if self._last_words is not None:
                return self._last_words
            raise
        raise AssertionError


async def alive() -> None:
    """An engine that reacts."""


async def frozen() -> NoReturn:
    await asyncio.Event().wait()
    raise AssertionError


def ends() -> list[Work]:
    return [Work(None), Work("Client disconnected"), Work(ValueError("disconnected"))]


async def test_result_in_time_is_returned() -> None:
    limit = ItemTimeout(LONG_S, frozen)

    async def good() -> str:
        return "good"

    async def bad() -> str:
        raise ZeroDivisionError

    assert await limit.run(good()) == "good"
    with pytest.raises(ZeroDivisionError):
        await limit.run(bad())


async def test_cancelled_caller_gets_no_answer() -> None:
    for work in ends():
        call = asyncio.create_task(ItemTimeout(LONG_S, frozen).run(work()))
        await work.began.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert work.ended


@pytest.mark.parametrize(("sign", "failure"), [(alive, TimeoutError), (frozen, EngineStalledError)])
async def test_late_result_is_a_timeout_of_the_item_or_of_the_engine(
    sign: Callable[[], Awaitable[None]], failure: type[Exception]
) -> None:
    for work in ends():
        with pytest.raises(failure):
            await ItemTimeout(0.01, sign, liveness_timeout_s=0.01).run(work())
        assert work.ended


async def test_timeout_waits_for_the_liveness_check() -> None:
    asked, reacts = asyncio.Event(), asyncio.Event()

    async def sign() -> None:
        asked.set()
        await reacts.wait()

    call = asyncio.create_task(
        ItemTimeout(0.01, sign, liveness_timeout_s=LONG_S).run(Work("words")())
    )
    await asked.wait()
    assert not call.done()
    reacts.set()
    with pytest.raises(TimeoutError):
        await call
