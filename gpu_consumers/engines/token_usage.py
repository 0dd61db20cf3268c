"""Reads the token usage of an answer of the OpenAI API without decoding the rest."""

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_fields import NULL, has_error, status_of_error_body


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
