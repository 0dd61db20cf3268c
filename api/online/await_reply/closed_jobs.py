"""Jobs that were closed, as `control` tells: whoever waits for one here has nothing to wait for."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from api.http.responses import ApiError
from api.online.answer.call_failures import deadline_exceeded, job_cancelled
from core.states import CloseReason
from topics.records.received import Received
from topics.records.records import JobControl
from topics.tail_readers.tail_thread import readable

ClosedJob = tuple[UUID, CloseReason]


class JobCloseReader:
    """Picks the closes out of `control`, and hands them over once a poll."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[ClosedJob]], None]
    ) -> None:
        """`deliver` runs on the loop."""
        self._loop, self._deliver = loop, deliver

    def take(self, records: list[Received]) -> None:
        """Take in one poll. Raises SchemaTooNewError."""
        closed = [
            (control.job_id, control.closed)
            for _, control in readable(JobControl, records)
            if control is not None and control.closed is not None
        ]
        if closed:
            self._loop.call_soon_threadsafe(self._deliver, closed)


def close_error(reason: CloseReason) -> ApiError:
    """Return what the client of a durable call is told whose job was closed."""
    return deadline_exceeded() if reason is CloseReason.EXPIRED else job_cancelled()
