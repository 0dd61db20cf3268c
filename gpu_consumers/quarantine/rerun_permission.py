"""Whether a call that may have run before may run: its caller knows what it has heard."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from topics.records.records import CallRef

ANSWER_S_MAX: Final = 3.0
"""Time for a caller's word once the log has the question; then it is asked again."""

ASKS_MAX: Final = 3
"""A caller that has not permitted a call by then is done with it, or cannot hear."""

Ask = Callable[[CallRef, UUID], asyncio.Future[None]]
"""Sends one question; what it returns is done when the log has it."""


class Questions:
    """Open questions; used on the event loop alone."""

    def __init__(self, ask: Ask) -> None:
        """Nothing is asked yet."""
        self._ask = ask
        self._open: dict[UUID, asyncio.Future[None]] = {}

    async def may_run(self, call: CallRef, request_id: UUID) -> bool:
        """Ask, and wait for the caller's word; False when none comes.

        A question may lie here for long, while its partition has no leader: its time counts from
        its acknowledgement. Who waits is cancelled when the call is aborted, past its deadline, or
        its caller dead.
        """
        permitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request_id] = permitted
        try:
            for _ in range(ASKS_MAX):
                asked = self._ask(call, request_id)
                await asyncio.wait([permitted, asked], return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait([permitted], timeout=ANSWER_S_MAX)
                if permitted.done():
                    return True
            return False
        finally:
            del self._open[request_id]

    def permitted(self, request_ids: Iterable[UUID]) -> None:
        """A caller's news permit these; ids that nobody asked about here are others' business."""
        for request_id in request_ids:
            waiting = self._open.get(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
