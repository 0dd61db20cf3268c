"""Estimates the tokens of an item without a tokenizer; batching only needs their proportion."""

import re
from typing import Final

import msgspec

_BYTES_PER_TOKEN: Final = 4
_OUTPUT_TOKENS_UNSTATED: Final = 256  # assumed for a request without a limit
_TOKENS_MAX: Final = 10_000_000  # a client may request more than an integer in a record holds

_ABSENT: Final = msgspec.Raw()
_LIST_OF_PROMPTS: Final = re.compile(rb'\s*\[\s*(["[])')  # a list of token ids is one prompt

_GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


class _OutputLimits(msgspec.Struct, gc=False):
    """The fields of a request that limit its output."""

    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Completion(_OutputLimits, gc=False):
    """A legacy completion; it may have many prompts, each with its own output."""

    prompt: msgspec.Raw = _ABSENT


_OUTPUT_LIMITS: Final = msgspec.json.Decoder(_OutputLimits)
_COMPLETION: Final = msgspec.json.Decoder(_Completion)


def token_count(endpoint: str, body: bytes | msgspec.Raw, body_bytes: int) -> int:
    """Return the estimated tokens of a request: its prompt and its requested output.

    Fields of a wrong type count as absent; the engine reports them.
    """
    prompt = prompt_token_count(body_bytes)
    if endpoint not in _GENERATING:
        return min(prompt, _TOKENS_MAX)
    return min(prompt + _output_tokens(endpoint, body), _TOKENS_MAX)


def prompt_token_count(body_bytes: int) -> int:
    """Return the estimated tokens of a prompt, from the length of the body."""
    return body_bytes // _BYTES_PER_TOKEN


def _output_tokens(endpoint: str, body: bytes | msgspec.Raw) -> int:
    prompts = 1
    try:
        if endpoint == "/v1/completions":
            limits: _OutputLimits = (completion := _COMPLETION.decode(body))
            prompts = _prompt_count(completion.prompt)
        else:
            limits = _OUTPUT_LIMITS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _OUTPUT_TOKENS_UNSTATED
    limit = limits.max_completion_tokens or limits.max_output_tokens or limits.max_tokens
    if limit is None:
        limit = _OUTPUT_TOKENS_UNSTATED
    return max(0, limit) * max(1, limits.n or 1) * prompts


def _prompt_count(prompt: msgspec.Raw) -> int:
    """Return the number of prompts in the JSON text `prompt`; 1 if it is not a list of prompts.

    Counts bytes instead of decoding: decoding a list of a few MB would block an event loop.
    """
    found = _LIST_OF_PROMPTS.match(prompt)
    if found is None:
        return 1
    text = bytes(prompt)
    if found[1] == b"[":
        return text.count(b"[") - 1  # prompts of token ids, in one list
    unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
    return unescaped.count(b'"') // 2
