"""Time limits for work before a call's record is sent and after its reply has arrived."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from api.online.answer.call_failures import deadline_exceeded
from api.online.calls import PlannedCall
from core.clock import Clock


@asynccontextmanager
async def time_limit(left_s: float) -> AsyncIterator[None]:
    """Cancel the block after `left_s`. Raises ApiError (504) then."""
    try:
        async with asyncio.timeout(left_s):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None


def call_deadline(
    call: PlannedCall, clock: Clock, *, wait_s: float | None = None
) -> AbstractAsyncContextManager[None]:
    """Cancel the block at the deadline of a call, or when its client has waited for `wait_s`.

    Raises ApiError (504) then.
    """
    limit_s = call.timeout_s if wait_s is None else min(wait_s, call.timeout_s)
    return time_limit(call.left_s(limit_s, now_s=clock.monotonic_s()))
