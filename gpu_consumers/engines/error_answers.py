"""The OpenAI error envelope as an answer. Messages name the mistake, never the item's text."""

from http import HTTPStatus
from typing import Final

import msgspec

from core.bodies.body_limits import ExceededLimit
from gpu_consumers.engines.engine import EngineAnswer

TRANSIENT_STATUSES: Final = frozenset({408, 409, 425})
"""Statuses below 500 that a retry may avoid: timeout, conflict, too early."""

PERMANENT_STATUSES: Final = frozenset({501, 505})
"""Statuses from 500 on that every retry of the request meets again."""

PERMANENT_CODES: Final = frozenset(
    {
        "answer_too_large",
        "body_unreadable",
        "foreign_object",
        "input_missing",
        "item_crashes_engine",
        "item_out_of_memory",
        "upstream_redirect",
    }
)
"""Codes of our own envelopes that every retry meets again, whatever their status."""


class _Error(msgspec.Struct):
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def is_transient(answer: EngineAnswer) -> bool:
    """Whether a retry of the failed item may succeed.

    Failures of the pool never become answers, so the failure is the item's: either the request is
    wrong, or this execution of it failed.
    """
    status = answer.status_code
    if status in TRANSIENT_STATUSES:
        return True
    if status < HTTPStatus.INTERNAL_SERVER_ERROR or status in PERMANENT_STATUSES:
        return False
    return error_code_of(answer.body) not in PERMANENT_CODES


def error_code_of(body: bytes) -> str | None:
    """Return the code in an error envelope; None without one."""
    try:
        return _ENVELOPE.decode(body).error.code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # an upstream's own format


def error_answer(
    status_code: int,
    message: str,
    *,
    type_: str | None = None,
    param: str | None = None,
    code: str | None = None,
) -> EngineAnswer:
    """Build `{"error": {...}}` with all four keys present, as clients expect.

    Without `type_` the error is the server's from status 500 on, and the request's below.
    """
    if type_ is None:
        is_of_server = status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
        type_ = "server_error" if is_of_server else "invalid_request_error"
    error = {"message": message, "type": type_, "param": param, "code": code}
    return EngineAnswer(status_code, msgspec.json.encode({"error": error}))


def body_limit_answer(exceeded: ExceededLimit) -> EngineAnswer:
    """Return the answer to a body that exceeds a limit of what it may contain."""
    return error_answer(400, exceeded.message, param=exceeded.param, code="invalid_value")


def unknown_endpoint_answer(endpoint: str) -> EngineAnswer:
    """Return the answer of an engine without this route."""
    return error_answer(404, f"This engine does not serve {endpoint}.", code="unknown_endpoint")


def unknown_adapter_answer() -> EngineAnswer:
    """Return the answer of an engine that has no adapters to an item of one."""
    message = "This engine serves no adapters."
    return error_answer(404, message, param="model", code="adapter_unknown")


def stream_unsupported_answer() -> EngineAnswer:
    """Return the answer to an item that requests a stream."""
    return error_answer(400, "A job item cannot stream.", param="stream", code="stream_unsupported")


def item_timeout_answer(limit_s: float | None) -> EngineAnswer:
    """Return the answer to an item that ran longer than `limit_s`."""
    message = f"The item did not finish within {limit_s:g} s."
    return error_answer(504, message, type_="timeout_error", code="item_timeout")
