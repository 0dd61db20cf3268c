"""What comes before the record of a call, and after its end, within the call's deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from api.online.answer.call_failures import deadline_exceeded
from api.online.calls import PlannedCall
from core.clock import Clock


@asynccontextmanager
async def time_limit(left_s: float) -> AsyncIterator[None]:
    """Cut the block after `left_s`. Raises ApiError (504) then."""
    try:
        async with asyncio.timeout(left_s):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None


def call_deadline(
    call: PlannedCall, clock: Clock, *, wait_s: float | None = None
) -> AbstractAsyncContextManager[None]:
    """Cut the block at the deadline of a call, or when its client has waited for `wait_s`.

    Raises ApiError (504) then.
    """
    most_s = call.timeout_s if wait_s is None else min(wait_s, call.timeout_s)
    return time_limit(call.left_s(most_s, now_s=clock.monotonic_s()))
