"""What an engine in this process refuses, in the words of the OpenAI API."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from pydantic import ValidationError

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""OpenAI's own code of a prompt that is longer than the model's context."""

_PROMPT_LENGTHS: Final = frozenset({"input_tokens", "input_text"})
"""Parameters that vLLM names when a prompt is too long; no body has them."""

_ERROR_TYPES: Final = {404: "not_found_error", 500: "server_error", 501: "server_error"}


def invalid_body_answer(mistakes: ValidationError) -> EngineAnswer:
    """Name the first mistake and its place.

    What is in a body tells which of several it was meant to be, what is missing does not.
    """
    said = mistakes.errors(include_input=False, include_url=False, include_context=False)
    there = (one for one in said if one["type"] != "missing" or len(_place(one["loc"])) > 1)
    mistake = next(there, said[0])
    parts = _place(mistake["loc"])
    place = ".".join(parts)
    param = parts[0] if parts else None
    return error_answer(400, f"{place}: {mistake['msg']}" if place else mistake["msg"], param=param)


def _place(found: Sequence[int | str]) -> list[str]:
    """Return the names of fields, without those of vLLM's classes and checks between them."""
    return [part for part in map(str, found) if not part[:1].isupper() and "[" not in part]


def sequence_limit_answer(prompt: object, n: int | None, sequences_max: int) -> EngineAnswer | None:
    """Refuse a body that asks for more sequences than one may; None when it does not.

    All of them come before everybody's later calls, and hold one place.
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
    """Keep vLLM's status, message and parameter; give them the types and codes of OpenAI."""
    code = None
    if status_code == HTTPStatus.NOT_FOUND:
        code = "model_not_found"
    elif status_code == HTTPStatus.BAD_REQUEST and param in _PROMPT_LENGTHS:
        code = CONTEXT_EXCEEDED
    type_ = _ERROR_TYPES.get(status_code, "invalid_request_error")
    return error_answer(status_code, message, type_=type_, param=param, code=code)
