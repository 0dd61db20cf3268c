"""Failures of an engine in this process: refusals as errors of the OpenAI API, memory, and NaN.

JSON cannot represent NaN and infinity: the model's arithmetic failed. Such an item fails; its
numbers would become null in an answer that looks valid.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from pydantic import ValidationError

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's code for a prompt that is longer than the model's context."""

_PROMPT_LENGTHS: Final = frozenset({"input_tokens", "input_text"})
"""Parameters that vLLM reports for a prompt that is too long; they are no request fields."""

_MESSAGE_CHARS_MAX: Final = 1_000
_MISTAKES_MAX: Final = 2_000
_ERROR_TYPES: Final = {404: "not_found_error", 500: "server_error", 501: "server_error"}


def invalid_body_answer(mistakes: ValidationError) -> EngineAnswer:
    """Return an answer with the first validation error and its field, if there are not too many.

    Errors about present fields come first: they tell which variant of a union was meant.
    """
    if (count := mistakes.error_count()) > _MISTAKES_MAX:  # 15 µs each to build
        return error_answer(400, f"The request body has {count} validation errors.")
    errors = mistakes.errors(include_input=False, include_url=False, include_context=False)
    present = (one for one in errors if one["type"] != "missing" or len(_fields(one["loc"])) > 1)
    error = next(present, errors[0])
    fields = _fields(error["loc"])
    path = ".".join(fields)
    param = fields[0] if fields else None
    message = f"{path}: {error['msg']}" if path else error["msg"]
    return error_answer(400, _shortened(message), param=param)


def _shortened(message: str) -> str:
    """Return a message of a bounded length: some of vLLM's and pydantic's quote the request."""
    if len(message) <= _MESSAGE_CHARS_MAX:
        return message
    return message[: _MESSAGE_CHARS_MAX - 1] + "…"


def _fields(location: Sequence[int | str]) -> list[str]:
    """Return the field names of a location, without vLLM's class and validator names."""
    return [part for part in map(str, location) if not part[:1].isupper() and "[" not in part]


def sequence_limit_answer(prompt: object, n: int | None, sequences_max: int) -> EngineAnswer | None:
    """Return the refusal of a body with more sequences than allowed; None if it has fewer.

    All sequences of a body run ahead of later calls, in one slot.
    """
    count = 1 if n is None else n
    if count > sequences_max:
        return error_answer(400, f"`n` must be at most {sequences_max}.", param="n")
    prompts = prompt_count(prompt)
    if prompts * count <= sequences_max:
        return None
    message = f"{prompts} prompts times `n` = {count} are more than {sequences_max} sequences."
    return error_answer(400, message, param="prompt")


def prompt_count(prompt: object) -> int:
    """Return the number of prompts in a body; a chat has one, and no field `prompt`."""
    return len(prompt) if isinstance(prompt, list) and not _is_tokens(prompt) else 1


def _is_tokens(prompt: list[object]) -> bool:
    return bool(prompt) and isinstance(prompt[0], int)


def refusal_answer(status_code: int, message: str, param: str | None) -> EngineAnswer:
    """Return vLLM's status, message and parameter with the types and codes of OpenAI."""
    code = None
    if status_code == HTTPStatus.NOT_FOUND:
        code = "model_not_found"
    elif status_code == HTTPStatus.BAD_REQUEST and param in _PROMPT_LENGTHS:
        code = CONTEXT_EXCEEDED
    type_ = _ERROR_TYPES.get(status_code, "invalid_request_error")
    return error_answer(status_code, _shortened(message), type_=type_, param=param, code=code)


NOT_FINITE: Final = error_answer(
    500, "The model's answer holds numbers that are not finite.", code="answer_not_finite"
)

_JSON_MESSAGE: Final = "not JSON compliant"


class NotFiniteError(ValueError):
    """A vector holds NaN or infinity."""


def check_vectors(data: Iterable[Mapping[str, Any]]) -> None:
    """Check the vectors of an embeddings answer; base64 vectors are not checked.

    Raises NotFiniteError.
    """
    for row in data:
        vector = row["embedding"]
        # A sum finds the same as checking each number, at a tenth of the cost.
        if not isinstance(vector, str) and not math.isfinite(sum(vector)):
            raise NotFiniteError


def failure_answer(failure: BaseException) -> EngineAnswer | None:
    """Return the answer to an item that failed with an exception that vLLM has no status for.

    None for any other exception.
    """
    if _is_not_finite(failure):
        return NOT_FINITE
    if isinstance(failure, RecursionError):
        return error_answer(400, "The request body is nested too deeply.", code="invalid_value")
    return None


def _is_not_finite(failure: BaseException) -> bool:
    """Whether `failure` is NotFiniteError, or `json` refusing to encode such a number."""
    if isinstance(failure, NotFiniteError):
        return True
    return isinstance(failure, ValueError) and _JSON_MESSAGE in str(failure)


_CAUSES_MAX: Final = 10


def is_out_of_memory(failure: BaseException) -> bool:
    """Whether an exception or one of its causes is Python's or a device's out-of-memory error.

    A device's is recognised by name: the frameworks that declare it are not imported here.
    """
    cause: BaseException | None = failure
    for _ in range(_CAUSES_MAX):
        if cause is None:
            return False
        if isinstance(cause, MemoryError) or type(cause).__name__ == "OutOfMemoryError":
            return True
        cause = cause.__cause__ or cause.__context__
    return False
