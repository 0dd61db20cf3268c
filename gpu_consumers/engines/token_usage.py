"""Token counts read from an answer of the OpenAI API without building the rest of it."""

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_fields import NULL, has_error, status_of_error_body


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct):
    """Counts as an API states them.

    `prompt_…` and `completion_…` on most routes, `input_…` and `output_…` on responses.
    """

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
    """Return the answer with its counts, zeros where it states none; None if it is no object.

    A body that states an error, and no answer beside it, gets the status of that.
    """
    try:
        check_utf8(body)
        stated = _body.decode(body)
        if has_error(stated.error):
            status_code = status_of_error_body(stated.error, body) or status_code
    except msgspec.ValidationError:  # JSON, but not the counts we know
        return EngineAnswer(status_code, body) if is_json_object(body) else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return with_usage(EngineAnswer(status_code, body), stated.usage)


def with_usage(answer: EngineAnswer, usage: Usage | None) -> EngineAnswer:
    """Return the answer with what `usage` states, unchanged without one."""
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
    """Raise UnicodeDecodeError: msgspec does not look into strings that it skips."""
    if not body.isascii():
        body.decode()


def _count(stated: int | None) -> int:
    """A count that can be billed: an upstream's nonsense becomes 0, not a stopped partition."""
    return stated if stated is not None and 0 <= stated < 2**31 else 0
