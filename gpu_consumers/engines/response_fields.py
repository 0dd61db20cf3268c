"""Reads the fields `usage` and `error` of answers and stream events, without decoding the rest."""

from typing import Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

NULL: Final = msgspec.Raw(b"null")

_ERROR_STATUSES: Final = range(400, 600)
_BAD_GATEWAY: Final = 502
_INTERRUPTED: Final = "The stream broke off with an error."
_EMPTY: Final = frozenset({b"null", b"[]"})


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """The field `usage`; `input_…` and `output_…` are the names on `/v1/responses`."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _OutputDetails | None = None


class _Body(msgspec.Struct):
    usage: Usage | None = None
    error: msgspec.Raw = NULL


_body = msgspec.json.Decoder(_Body)
_json = msgspec.json.Decoder(dict[str, msgspec.Raw])


def is_json_object(body: bytes) -> bool:
    """Whether the body is one well-formed JSON object."""
    try:
        check_utf8(body)
        _json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return True


def answer_with_usage(status_code: int, body: bytes) -> EngineAnswer | None:
    """Return the answer with its usage, zeros without one; None if the body is no JSON object.

    A body with an error and no results gets the error's status.
    """
    try:
        check_utf8(body)
        decoded = _body.decode(body)
        if has_error(decoded.error):
            status_code = status_of_error_body(decoded.error, body) or status_code
    except msgspec.ValidationError:  # JSON with another shape of usage
        return EngineAnswer(status_code, body) if is_json_object(body) else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return with_usage(EngineAnswer(status_code, body), decoded.usage)


def with_usage(answer: EngineAnswer, usage: Usage | None) -> EngineAnswer:
    """Return the answer with the counts of `usage`, unchanged without one."""
    if usage is None:
        return answer
    input_details = usage.prompt_tokens_details or usage.input_tokens_details
    output_details = usage.completion_tokens_details or usage.output_tokens_details
    return EngineAnswer(
        answer.status_code,
        answer.body,
        _count(usage.prompt_tokens or usage.input_tokens),
        _count(usage.completion_tokens or usage.output_tokens),
        _count(input_details.cached_tokens if input_details else None),
        _count(output_details.reasoning_tokens if output_details else None),
    )


def check_utf8(body: bytes) -> None:
    """Raise UnicodeDecodeError if invalid: msgspec does not check strings that it skips."""
    if not body.isascii():
        body.decode()


def _count(stated: int | None) -> int:
    """Return a count that can be billed; an upstream's invalid count becomes 0."""
    return stated if stated is not None and 0 <= stated < 2**31 else 0


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class _Results(msgspec.Struct):
    """Fields that make a body a success even if it also has an error."""

    choices: msgspec.Raw = NULL
    data: msgspec.Raw = NULL
    results: msgspec.Raw = NULL
    object: msgspec.Raw = NULL


_error = msgspec.json.Decoder(_Error)
_results = msgspec.json.Decoder(_Results)


def has_error(error: msgspec.Raw) -> bool:
    """Whether the field reports an error."""
    return error is not NULL and bytes(error) != b"null"


def status_of_error_body(error: msgspec.Raw, body: bytes) -> int | None:
    """Return the status that a body with this error should have; None if it has results."""
    found = _results.decode(body)
    fields = (found.choices, found.data, found.results, found.object)
    return None if any(bytes(field) not in _EMPTY for field in fields) else _status(error)


def error_event_answer(error: msgspec.Raw) -> EngineAnswer:
    """Return an error event as an answer."""
    try:
        stated = _error.decode(error)
    except msgspec.ValidationError:
        return error_answer(_BAD_GATEWAY, _INTERRUPTED, code="stream_interrupted")
    return error_answer(
        _status(error),
        stated.message or _INTERRUPTED,
        type_=None if isinstance(stated.code, int) else stated.type or None,
        param=stated.param,
        code=stated.code if isinstance(stated.code, str) else None,
    )


def _status(error: msgspec.Raw) -> int:
    """Return the code if it is an HTTP error status, as some hosts send it; else 502."""
    try:
        code = _error.decode(error).code
    except msgspec.ValidationError:
        return _BAD_GATEWAY
    return code if isinstance(code, int) and code in _ERROR_STATUSES else _BAD_GATEWAY
