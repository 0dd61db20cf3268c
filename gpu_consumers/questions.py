"""Whether a call that may have run before may run: its caller knows what it has heard."""

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from topics.records import CallRef

ANSWER_S_MAX = 3.0
"""A caller that has not permitted a call by then is dead, or is done with it."""


class Questions:
    """Open questions; used on the event loop alone."""

    def __init__(
        self, ask: Callable[[CallRef, UUID], None], *, answer_s_max: float = ANSWER_S_MAX
    ) -> None:
        """`ask` sends one question."""
        self._ask, self._answer_s_max = ask, answer_s_max
        self._open: dict[UUID, asyncio.Future[None]] = {}

    async def may_run(self, call: CallRef, request_id: UUID) -> bool:
        """Ask, and wait for the caller's word; False when none comes."""
        permitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open[request_id] = permitted
        self._ask(call, request_id)
        try:
            async with asyncio.timeout(self._answer_s_max):
                await permitted
        except TimeoutError:
            return False
        finally:
            del self._open[request_id]
        return True

    def permitted(self, request_ids: Iterable[UUID]) -> None:
        """A caller's news permit these; ids that nobody asked about here are others' business."""
        for request_id in request_ids:
            waiting = self._open.get(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
