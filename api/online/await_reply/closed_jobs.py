"""Closed jobs from the `control` topic: a client that waits for one gets an error."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from api.http.responses import ApiError
from api.online.answer.call_failures import deadline_exceeded, job_cancelled
from core.states import CloseReason
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl
from topics.tail_readers.tail_reader_thread import decode_records

ClosedJob = tuple[UUID, CloseReason]


class JobCloseReader:
    """Reads the closed jobs among control records, and delivers them once a poll."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, deliver: Callable[[list[ClosedJob]], None]
    ) -> None:
        """`deliver` runs on the loop."""
        self._loop, self._deliver = loop, deliver

    def read_records(self, records: list[ReceivedRecord]) -> None:
        """Read the records of one poll. Raises SchemaTooNewError."""
        closed = [
            (control.job_id, control.closed)
            for _, control in decode_records(JobControl, records)
            if control is not None and control.closed is not None
        ]
        if closed:
            self._loop.call_soon_threadsafe(self._deliver, closed)


def close_error(reason: CloseReason) -> ApiError:
    """Return the error for the client of a durable call whose job was closed."""
    return deadline_exceeded() if reason is CloseReason.EXPIRED else job_cancelled()
