"""How many tokens an item may cost, without a tokenizer: batching wants proportion, not truth."""

import re
from typing import Final

import msgspec

_BYTES_PER_TOKEN: Final = 4
_OUTPUT_TOKENS_UNSTATED: Final = 256  # what a request without a limit is taken to produce
_TOKENS_MAX: Final = 10_000_000  # a client may ask for more than an integer on the log can hold

_ABSENT: Final = msgspec.Raw()
_LIST_OF_PROMPTS: Final = re.compile(rb'\s*\[\s*(["[])')  # token ids themselves are one prompt

_GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


class _Requested(msgspec.Struct, gc=False):
    """The fields of a request that bound its output."""

    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Completion(_Requested, gc=False):
    """A legacy completion, which may hold many prompts, each with an output of its own."""

    prompt: msgspec.Raw = _ABSENT


_REQUESTED: Final = msgspec.json.Decoder(_Requested)
_COMPLETION: Final = msgspec.json.Decoder(_Completion)


def token_count(endpoint: str, body: bytes | msgspec.Raw, body_bytes: int) -> int:
    """Return the estimated tokens of a request: its prompt and the output that it asks for.

    Fields of a wrong type count as absent; the engine answers for them.
    """
    prompt = prompt_token_count(body_bytes)
    if endpoint not in _GENERATING:
        return min(prompt, _TOKENS_MAX)
    return min(prompt + _output_tokens(endpoint, body), _TOKENS_MAX)


def prompt_token_count(body_bytes: int) -> int:
    """Return the estimated tokens of a prompt, from the length of the whole body."""
    return body_bytes // _BYTES_PER_TOKEN


def _output_tokens(endpoint: str, body: bytes | msgspec.Raw) -> int:
    prompts = 1
    try:
        if endpoint == "/v1/completions":
            asked: _Requested = (completion := _COMPLETION.decode(body))
            prompts = _prompt_count(completion.prompt)
        else:
            asked = _REQUESTED.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _OUTPUT_TOKENS_UNSTATED
    limit = asked.max_completion_tokens or asked.max_output_tokens or asked.max_tokens
    if limit is None:
        limit = _OUTPUT_TOKENS_UNSTATED
    return max(0, limit) * max(1, asked.n or 1) * prompts


def _prompt_count(prompt: msgspec.Raw) -> int:
    """Return how many prompts the JSON text `prompt` holds; 1 of what is none.

    Bytes are counted and no list is made: one of a few MB would hold up an event loop.
    """
    found = _LIST_OF_PROMPTS.match(prompt)
    if found is None:
        return 1
    text = bytes(prompt)
    if found[1] == b"[":
        return text.count(b"[") - 1  # prompts of token ids, in one list
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return unescaped.count(b'"') // 2
