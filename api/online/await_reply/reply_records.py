"""Decodes the records that end or continue the open calls of this process."""

import logging
from uuid import UUID

from core.errors import RecordUnreadableError
from core.states import CloseReason
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl, Replies
from topics.tail_readers.tail_reader_thread import decode_records

_LOG = logging.getLogger(__name__)

ClosedJob = tuple[UUID, CloseReason]


def decode_replies(records: list[ReceivedRecord], caller_id: str) -> list[Replies]:
    """Return the replies to a caller. Those to other callers are skipped by a header."""
    header = ("caller", caller_id.encode())
    found: list[Replies] = []
    for record in records:
        if header not in record.headers:
            continue
        try:
            found.append(decode(Replies, record.value, record.headers))
        except RecordUnreadableError:
            _LOG.exception("unreadable replies", extra={"offset": record.offset})
    return found


def decode_closed_jobs(records: list[ReceivedRecord]) -> list[ClosedJob]:
    """Return the jobs that the records of `control` close. Raises SchemaTooNewError."""
    return [
        (control.job_id, control.closed)
        for _, control in decode_records(JobControl, records)
        if control is not None and control.closed is not None
    ]
