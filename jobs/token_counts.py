"""How many tokens an item may cost, without a tokenizer: batching wants proportion, not truth."""

from typing import Final

import msgspec

_BYTES_PER_TOKEN: Final = 4
_OUTPUT_TOKENS_UNSTATED: Final = 256  # what a request without a limit is taken to produce
_TOKENS_MAX: Final = 10_000_000  # a client may ask for more than an integer on the log can hold

_GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})


class _Requested(msgspec.Struct, gc=False):
    """The fields of a request that bound its output."""

    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Completion(_Requested, gc=False):
    """A legacy completion, which may hold many prompts, each with an output of its own."""

    prompt: str | list[msgspec.Raw] | None = None

    @property
    def prompt_count(self) -> int:
        if not isinstance(self.prompt, list) or not self.prompt:
            return 1
        is_tokens = bytes(self.prompt[0]).isdigit()  # of one prompt
        return 1 if is_tokens else len(self.prompt)


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
            prompts = completion.prompt_count
        else:
            asked = _REQUESTED.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _OUTPUT_TOKENS_UNSTATED
    limit = asked.max_completion_tokens or asked.max_output_tokens or asked.max_tokens
    if limit is None:
        limit = _OUTPUT_TOKENS_UNSTATED
    return max(0, limit) * max(1, asked.n or 1) * prompts
