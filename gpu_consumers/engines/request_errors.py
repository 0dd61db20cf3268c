"""Refusals of an engine in this process, as errors of the OpenAI API."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's code for a prompt that is longer than the model's context."""

_PROMPT_LENGTHS: Final = frozenset({"input_tokens", "input_text"})
"""Parameters that vLLM reports for a prompt that is too long; they are no request fields."""

_ERROR_TYPES: Final = {404: "not_found_error", 500: "server_error", 501: "server_error"}


def invalid_body_answer(mistakes: ValidationError) -> EngineAnswer:
    """Return an answer with the first validation error and its field.

    Errors about present fields come first: they tell which variant of a union was meant.
    """
    errors = mistakes.errors(include_input=False, include_url=False, include_context=False)
    present = (one for one in errors if one["type"] != "missing" or len(_fields(one["loc"])) > 1)
    error = next(present, errors[0])
    fields = _fields(error["loc"])
    path = ".".join(fields)
    param = fields[0] if fields else None
    return error_answer(400, f"{path}: {error['msg']}" if path else error["msg"], param=param)


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
    prompts = len(prompt) if isinstance(prompt, list) and not _is_tokens(prompt) else 1
    if prompts * count <= sequences_max:
        return None
    message = f"{prompts} prompts times `n` = {count} are more than {sequences_max} sequences."
    return error_answer(400, message, param="prompt")


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
    return error_answer(status_code, message, type_=type_, param=param, code=code)
