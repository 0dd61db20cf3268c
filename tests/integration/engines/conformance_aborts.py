"""The suite of `conformance`, continued: what is cut off ends as cut, and in time.

A subclass also gives a `hasty` fixture: an engine on which `LONG` takes longer than an item may.
"""

import asyncio
import time
from typing import Any

import pytest

from gpu_consumers.engines.engine import Engine, EngineAnswer, UsageMeter
from tests.integration.engines.conformance import (
    CHAT,
    COMPLETIONS,
    assert_error_envelope,
    chat_body,
    content_of,
    run,
)
from tests.integration.engines.conformance_online import (
    FREES_S_MAX,
    assert_idle_within,
    completion_body,
)

LONG: dict[str, Any] = {"max_tokens": 2000, "ignore_eos": True}
"""Fields of a body that a model writes at for long."""

LONG_CALLS = [(CHAT, chat_body(**LONG)), (COMPLETIONS, completion_body(**LONG))]


async def await_work(engine: Engine) -> None:
    """Return when an engine in another process has the call itself, not only its request."""
    fetch = getattr(engine, "fetch_unfinished", None)
    began_s = time.monotonic()
    while fetch is not None and not await fetch():
        assert time.monotonic() < began_s + 30
        await asyncio.sleep(0.005)


class CutsConformance:
    """Holds for an engine whose model writes text."""

    @pytest.mark.parametrize(("endpoint", "body"), LONG_CALLS)
    async def test_cancelled_call_has_no_answer(
        self, engine: Engine, endpoint: str, body: bytes
    ) -> None:
        began = asyncio.Event()
        call = asyncio.create_task(engine.serve(endpoint, body, None, UsageMeter(began.set)))
        await asyncio.wait_for(began.wait(), 30)
        await await_work(engine)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await assert_idle_within(engine, FREES_S_MAX)

    async def test_cancelled_batch_ends_while_others_continue(self, engine: Engine) -> None:
        first, reported = asyncio.Event(), []

        def finished(index: int, _: EngineAnswer) -> None:
            reported.append(index)
            first.set()

        body = chat_body(max_tokens=64, ignore_eos=True)
        leaves = asyncio.create_task(
            engine.execute(CHAT, [body] * (4 * engine.concurrency), finished)
        )
        stays = asyncio.create_task(
            engine.execute(CHAT, [body] * (60 * engine.concurrency), lambda *_: None)
        )
        await asyncio.wait_for(first.wait(), 30)
        leaves.cancel()
        await asyncio.wait([leaves])
        assert leaves.cancelled()
        assert not stays.done()
        stays.cancel()
        await asyncio.wait([stays])
        assert stays.cancelled()
        await assert_idle_within(engine, FREES_S_MAX)

    @pytest.mark.parametrize(("endpoint", "body"), LONG_CALLS)
    async def test_long_item_times_out(self, hasty: Engine, endpoint: str, body: bytes) -> None:
        whole = await hasty.serve(endpoint, body, None)
        (item,) = await run(hasty, endpoint, [body])
        for answer in (whole, item):
            assert_error_envelope(answer, 504)
            assert content_of(answer)["error"]["code"] == "item_timeout"
        await assert_idle_within(hasty, FREES_S_MAX)
