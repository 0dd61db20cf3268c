r"""Lines of output and error files, as OpenAI's batch API writes them; bodies are never parsed.

{"id":"batch_req_…","custom_id":…,"response":{"status_code":…,"request_id":"req_…","body":…},
"error":null}\n          or          "response":null,"error":{"code":…,"message":…}}\n
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from core.ids import JOB, REQUEST
from core.outcomes import Outcome

ANSWER_GONE: Final = "answer_gone"
"""Code of a large answer whose object is not stored any more."""

ERROR_MESSAGES: Final[Mapping[str, str]] = {
    ANSWER_GONE: "This answer is not stored any more.",
    "answer_unreadable": "This answer cannot be decrypted.",
    "batch_cancelled": "This request was cancelled before it was executed.",
    "batch_expired": ("This request could not be executed before the completion window expired."),
    "failure_budget_exceeded": "More requests of this batch failed than it may have.",
    "spend_cap_reached": "This batch has used the tokens that it may use.",
    "key_gone": "The key that this answer is encrypted under is gone.",
    "record_unreadable": "This request could not be read back from the log.",
    "result_unstorable": "The result of this request could not be stored.",
}
"""Messages of codes whose rows carry none: a million rows need not repeat a sentence."""

CLOSING: Final = b'},"error":null}\n'
"""What stands after a body."""

_FALLBACK_CODE: Final = "request_failed"
_FALLBACK_MESSAGE: Final = "This request failed."
_SUCCEEDED: Final = Outcome.SUCCEEDED.value
_encode = msgspec.json.Encoder().encode


class ItemRow(NamedTuple):
    """A row of `items`, as much of it as a line shows."""

    item_index: int
    outcome: int
    status_code: int
    custom_id: str | None
    error_code: str | None
    error_message: str | None
    body: bytes | None
    body_key: str | None
    copied_from: int | None = None


class LineTemplate:
    """Renders the lines of one job. Ids derive from job and index, so a second run repeats them.

    Lines come in parts, because putting a body into a line costs more than all the rest of it.
    """

    def __init__(self, job_id: UUID) -> None:
        """Put the job's id into the templates once."""
        names = f"{JOB}_req_{job_id.hex}".encode(), f"{REQUEST}_{job_id.hex}".encode()
        self._opening = (
            b'{"id":"%b%%08x","custom_id":%%b,"response":'
            b'{"status_code":%%d,"request_id":"%b%%08x","body":' % names
        )
        self._unanswered = (
            b'{"id":"%b%%08x","custom_id":%%b,"response":null,"error":%%b}\n' % names[:1]
        )

    def line(self, row: ItemRow, custom_id: str | None) -> tuple[bytes, ...]:
        """Return the parts of the line of an item whose body, if any, is in its row."""
        index, _, status_code, _, _, _, body, _, _ = row
        if status_code == 0:
            return (self._unanswered % (index, _encode(custom_id), error_object(row)),)
        opening = self._opening % (index, _encode(custom_id), status_code, index)
        return opening, one_line(body) if body else b"null", CLOSING

    def opening(self, row: ItemRow, custom_id: str | None) -> bytes:
        """Return what stands before a body that is an object of its own; `CLOSING` follows it."""
        index = row.item_index
        return self._opening % (index, _encode(custom_id), row.status_code, index)


def one_line(body: bytes) -> bytes:
    """Return a JSON text without line breaks: outside of strings they are only space (RFC 8259)."""
    if b"\n" in body or b"\r" in body:
        return body.replace(b"\n", b" ").replace(b"\r", b" ")
    return body


def error_object(row: ItemRow) -> bytes:
    """Return the `error` of an item that has no answer."""
    code = row.error_code or _FALLBACK_CODE
    message = row.error_message or ERROR_MESSAGES.get(code, _FALLBACK_MESSAGE)
    return _encode({"code": code, "message": message})


def belongs_to_output(row: ItemRow) -> bool:
    """Whether the line goes to the output file; every other one goes to the error file."""
    return row.outcome == _SUCCEEDED
