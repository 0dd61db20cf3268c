r"""Lines of output and error files in the format of OpenAI's batch API; bodies are not parsed.

{"id":"batch_req_…","custom_id":…,"response":{"status_code":…,"request_id":"req_…","body":…},
"error":null}\n          or          "response":null,"error":{"code":…,"message":…}}\n

The line of an item that ran ends with its version and engine (see `line_provenance`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from core.ids import JOB, REQUEST
from core.outcomes import Outcome

ANSWER_GONE: Final = "answer_gone"
"""Error code of a large answer whose object is no longer stored."""

ERROR_MESSAGES: Final[Mapping[str, str]] = {
    ANSWER_GONE: "This answer is no longer stored. Submit the request again.",
    "answer_unreadable": "This answer cannot be decrypted. Submit the request again.",
    "batch_cancelled": "This request was cancelled before it was executed.",
    "batch_expired": ("This request could not be executed before the completion window expired."),
    "crash_budget_exceeded": "This batch was closed: its requests crashed the engine too often.",
    "failure_budget_exceeded": "This batch was closed: it exceeded its limit of failed requests.",
    "spend_cap_reached": "This batch was closed: it reached its limit of tokens.",
    "key_gone": "The encryption key of this answer was destroyed. Submit the request again.",
    "record_unreadable": "The record of this request is unreadable. Submit the request again.",
    "result_unstorable": "The result of this request could not be stored.",
}
"""Messages of codes whose rows store none, which saves repeating them in a million rows."""

AFTER_BODY: Final = b'},"error":null}\n'
"""Ends a line without provenance after its body."""

_FALLBACK_CODE: Final = "request_failed"
_FALLBACK_MESSAGE: Final = "This request failed."
_SUCCEEDED: Final = Outcome.SUCCEEDED.value
_encode = msgspec.json.Encoder().encode


class ItemRow(NamedTuple):
    """The columns of an item row that its line shows."""

    item_index: int
    outcome: int
    status_code: int
    custom_id: str | None
    error_code: str | None
    error_message: str | None
    body: bytes | None
    body_key: str | None
    copied_from: int | None = None
    provenance: int | None = None


def after_body(tag: bytes) -> bytes:
    """Return the end of a line after its body. `tag` is its last field, or empty."""
    return b'},"error":null%b}\n' % tag if tag else AFTER_BODY


class LineTemplate:
    """Renders the lines of one job. Ids derive from job and index, so they are repeatable.

    A line is returned in parts: joining a body with the rest costs more than everything else.
    """

    def __init__(self, job_id: UUID) -> None:
        names = f"{JOB}_req_{job_id.hex}".encode(), f"{REQUEST}_{job_id.hex}".encode()
        self._opening = (
            b'{"id":"%b%%08x","custom_id":%%b,"response":'
            b'{"status_code":%%d,"request_id":"%b%%08x","body":' % names
        )
        self._unanswered = (
            b'{"id":"%b%%08x","custom_id":%%b,"response":null,"error":%%b%%b}\n' % names[:1]
        )

    def line(self, row: ItemRow, custom_id: str | None, tag: bytes = b"") -> tuple[bytes, ...]:
        """Return the parts of an item's line; its body, if any, is in the row.

        `tag` is the last field of the line, or empty.
        """
        index, _, status_code, _, _, _, body, _, _, _ = row
        if status_code == 0:
            error = error_value(row.error_code or _FALLBACK_CODE, row.error_message)
            return (self._unanswered % (index, _encode(custom_id), error, tag),)
        opening = self._opening % (index, _encode(custom_id), status_code, index)
        return opening, one_line(body) if body else b"null", after_body(tag)

    def before_body(self, row: ItemRow, custom_id: str | None) -> bytes:
        """Return the start of a line whose body is an object; it and `after_body` follow."""
        index = row.item_index
        return self._opening % (index, _encode(custom_id), row.status_code, index)


def one_line(body: bytes) -> bytes:
    """Return JSON without line breaks, which are only white space outside strings (RFC 8259)."""
    if b"\n" in body or b"\r" in body:
        return body.replace(b"\n", b" ").replace(b"\r", b" ")
    return body


def error_value(code: str, message: str | None = None) -> bytes:
    """Return an `error` value; `message` defaults to that of its code."""
    message = message or ERROR_MESSAGES.get(code, _FALLBACK_MESSAGE)
    return _encode({"code": code, "message": message})


def belongs_to_output(row: ItemRow) -> bool:
    """Whether the line belongs to the output file; all others belong to the error file."""
    return row.outcome == _SUCCEEDED
