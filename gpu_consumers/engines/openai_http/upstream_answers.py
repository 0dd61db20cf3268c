"""Turns an upstream's response into an answer: its own JSON, or an error envelope."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.openai_http.response_reader import (
    DisconnectedError,
    NotHttpError,
    ResponseTooLargeError,
)
from gpu_consumers.engines.response_fields import NULL, answer_with_usage, is_json_object

_MESSAGE_FIELDS: Final = ("message", "detail", "error", "msg", "title")
"""Fields with the error message of servers that do not use OpenAI's envelope. With a `message`,
`error` names the status."""

_MESSAGE_CHARACTERS_MAX: Final = 4000

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_text = msgspec.json.Decoder(str)

_FAULTS: Final[dict[type[Exception], tuple[str, str]]] = {
    DisconnectedError: (
        "upstream_disconnected",
        "The upstream closed the connection before it had answered.",
    ),
    NotHttpError: ("answer_not_http", "The upstream's answer is not HTTP."),
    ResponseTooLargeError: ("answer_too_large", "The upstream's answer is too large."),
}


def upstream_answer(status_code: int, content: bytes) -> EngineAnswer:
    """Return the response as one line of JSON; anything else becomes an error envelope."""
    if b"\n" in content or b"\r" in content:  # in JSON these can only be white space
        content = content.replace(b"\n", b" ").replace(b"\r", b" ")
    if HTTPStatus.OK <= status_code < HTTPStatus.MULTIPLE_CHOICES:
        answer = answer_with_usage(HTTPStatus.OK, content)
        if answer is None:
            return error_answer(
                HTTPStatus.BAD_GATEWAY, "The upstream's answer is not JSON.", code="answer_not_json"
            )
        return _in_envelope(answer) if answer.is_error else answer
    if status_code < HTTPStatus.BAD_REQUEST:
        return error_answer(
            HTTPStatus.BAD_GATEWAY,
            "The upstream answered with a redirect.",
            code="upstream_redirect",
        )
    if is_json_object(content):
        return _in_envelope(EngineAnswer(status_code, content))
    return error_answer(status_code, f"The upstream answered {status_code} without a JSON object.")


def fault_answer(error: DisconnectedError | NotHttpError | ResponseTooLargeError) -> EngineAnswer:
    """Return the answer to an item whose response is missing or unusable."""
    code, message = _FAULTS[type(error)]
    return error_answer(HTTPStatus.BAD_GATEWAY, message, code=code)


def _in_envelope(answer: EngineAnswer) -> EngineAnswer:
    """Return an error in OpenAI's envelope, unchanged if it has one."""
    fields = _fields.decode(answer.body)
    if bytes(fields.get("error", NULL)).startswith(b"{"):
        return answer
    status, message = answer.status_code, _message_in(fields)
    if message is None:
        text = answer.body.decode()
        message = f"The upstream answered {status}: {text}"
    refusal = error_answer(status, message[:_MESSAGE_CHARACTERS_MAX])
    return msgspec.structs.replace(answer, body=refusal.body)


def _message_in(fields: Mapping[str, msgspec.Raw]) -> str | None:
    """Return the server's error message; None if it is in no known field."""
    for name in _MESSAGE_FIELDS:
        try:
            message = _text.decode(fields.get(name, NULL))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        if message:
            return message
    return None


NOT_EVENTS: Final = error_answer(
    HTTPStatus.BAD_GATEWAY,
    "The upstream was asked for a stream and gave a whole answer.",
    code="answer_not_events",
)
