"""What an upstream gave for an item: its own JSON, or an envelope that says what is wrong."""

from http import HTTPStatus
from typing import Final

from gpu_consumers.engines.engine import Answer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.http_answer import (
    AnswerTooLargeError,
    DisconnectedError,
    NotHttpError,
)
from gpu_consumers.engines.usage import answer_with_usage, is_json_object

_FAULTS: Final[dict[type[Exception], tuple[str, str]]] = {
    DisconnectedError: (
        "upstream_disconnected",
        "The upstream closed the connection before it had answered.",
    ),
    NotHttpError: ("answer_not_http", "The upstream's answer is not HTTP."),
    AnswerTooLargeError: ("answer_too_large", "The upstream's answer is too large."),
}


def judged(status_code: int, content: bytes) -> Answer:
    """Make the answer of one line of JSON; anything else becomes an error envelope."""
    if b"\n" in content or b"\r" in content:  # in JSON these can only be white space
        content = content.replace(b"\n", b" ").replace(b"\r", b" ")
    if HTTPStatus.OK <= status_code < HTTPStatus.MULTIPLE_CHOICES:
        answer = answer_with_usage(HTTPStatus.OK, content)
        return answer or _upstream_fault("answer_not_json", "The upstream's answer is not JSON.")
    if status_code < HTTPStatus.BAD_REQUEST:
        return _upstream_fault("upstream_redirect", "The upstream answered with a redirect.")
    if is_json_object(content):
        return Answer(status_code, content)
    kind = "server_error" if status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else None
    message = f"The upstream answered {status_code} without a JSON body."
    return error_answer(status_code, message, type_=kind or "invalid_request_error")


def fault_answer(error: DisconnectedError | NotHttpError | AnswerTooLargeError) -> Answer:
    """Return the answer to an item that the upstream got and did not answer whole."""
    return _upstream_fault(*_FAULTS[type(error)])


def _upstream_fault(code: str, message: str) -> Answer:
    """Say that the upstream got the item and gave nothing usable for it."""
    return error_answer(HTTPStatus.BAD_GATEWAY, message, type_="server_error", code=code)
