"""Sums up the estimated tokens of the items of a file, from lines that are decoded. Pure.

The estimates are those that emission makes from bytes (`core.bodies.token_estimates`), with the
prior as the expected output of a sequence. They serve to size pools, never to bill or to limit.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.bodies.token_estimates import (
    BYTES_PER_TOKEN,
    COMPLETION_TOKENS,
    CONTEXT_TOKENS_MAX,
    GENERATING,
    given_count,
)

LINE_OVERHEAD_BYTES: Final = 64
"""About what a line has besides its body: method, url, and the names of the keys."""

_CHAT: Final = "/v1/chat/completions"
_PRIOR: Final = int(OUTPUT_TOKENS_PRIOR)


class Tokens(NamedTuple):
    """Estimated tokens of items."""

    prompt: int = 0
    output: int = 0  # expected


class TokenSums:
    """The sum of the tokens of one file's items."""

    def __init__(self, endpoint: str) -> None:
        """Nothing was added yet."""
        self._endpoint, self._is_chat = endpoint, endpoint == _CHAT
        self._prompt = self._output = 0

    def add(self, line_bytes: int, body: Mapping[str, Any]) -> None:
        """Add an item, with the bytes of its line."""
        limit = body.get("max_tokens")
        if self._is_chat and "max_completion_tokens" not in body and "n" not in body:
            prompt = max(0, line_bytes - LINE_OVERHEAD_BYTES) // BYTES_PER_TOKEN
            if limit is None or (type(limit) is int and limit >= _PRIOR):
                output = _PRIOR
            else:
                output = given_count(limit)
        else:
            prompt, output = item_tokens(self._endpoint, line_bytes, body)
        self._prompt += prompt
        self._output += output

    @property
    def total(self) -> Tokens:
        """The sums so far."""
        return Tokens(self._prompt, self._output)


def item_tokens(endpoint: str, line_bytes: int, body: Mapping[str, Any]) -> tuple[int, int]:
    """Return the estimated prompt tokens and expected output tokens of one item.

    Any body is accepted: a field of a wrong type counts as absent; the engine refuses it.
    """
    prompt = max(0, line_bytes - LINE_OVERHEAD_BYTES) // BYTES_PER_TOKEN
    if endpoint == _CHAT:
        limit = body.get("max_completion_tokens")
        if limit is None:
            limit = body.get("max_tokens")
        sequences = given_count(body.get("n")) or 1
        return min(prompt, CONTEXT_TOKENS_MAX), _output(limit, sequences)
    if endpoint == "/v1/completions":
        prompts, tokens = _prompts_and_tokens(body.get("prompt"))
        choices = max(1, given_count(body.get("n")), given_count(body.get("best_of")))
        limit = body.get("max_tokens")
        output = _output(COMPLETION_TOKENS if limit is None else limit, prompts * choices)
        return min(prompt if tokens is None else tokens, CONTEXT_TOKENS_MAX), output
    _, tokens = _prompts_and_tokens(body.get("input"))
    return min(prompt if tokens is None else tokens, CONTEXT_TOKENS_MAX), 0


def default_tokens(endpoint: str, items: int, item_bytes: int) -> Tokens:
    """Return the estimate for items of a job whose sums are unknown, as releases before 0040 wrote.

    A token for each four bytes of its lines, and the prior as the output of each item.
    """
    output = int(OUTPUT_TOKENS_PRIOR) if endpoint in GENERATING else 0
    return Tokens(items * (item_bytes // BYTES_PER_TOKEN), items * output)


def _output(limit: object, sequences: int) -> int:
    each = OUTPUT_TOKENS_PRIOR if limit is None else min(OUTPUT_TOKENS_PRIOR, given_count(limit))
    return int(min(each * sequences, CONTEXT_TOKENS_MAX))


def _prompts_and_tokens(prompt: object) -> tuple[int, int | None]:
    """Return how many prompts a field holds, and their tokens if they are tokens."""
    if type(prompt) is not list or not prompt:
        return 1, None
    first = type(prompt[0])
    if first is str:
        return len(prompt), None
    if first is list:
        return len(prompt), sum(len(inner) for inner in prompt if type(inner) is list)
    return 1, len(prompt)
