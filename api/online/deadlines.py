"""What comes before the record of a call, within the call's deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.online.call_failures import deadline_exceeded
from api.online.calls import PlannedCall
from core.clock import Clock


@asynccontextmanager
async def within_deadline(call: PlannedCall, clock: Clock) -> AsyncIterator[None]:
    """Cut the block at the deadline of a call. Raises ApiError (504) then."""
    try:
        async with asyncio.timeout(call.left_s(call.timeout_s, now_s=clock.monotonic_s())):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None
