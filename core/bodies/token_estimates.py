"""Estimates the tokens of a request body without a tokenizer: prompt and output apart.

Fields are read as vLLM reads them. The output has two numbers: its *bound*, which the field or the
context allows, and what is *expected*, which results have shown (`core.bodies.output_estimator`).
"""

import re
from typing import Final

import msgspec

CONTEXT_TOKENS_MAX: Final = 10_000_000
"""More than any context, and the largest estimate: a client may request more than a record holds.
"""

BYTES_PER_TOKEN: Final = 4
"""Of the text of a body."""

COMPLETION_TOKENS: Final = 16
"""Of a completion without a limit: the default of the OpenAI API."""

GENERATING: Final = frozenset({"/v1/chat/completions", "/v1/completions"})
"""Endpoints whose items have an output."""

_ABSENT: Final = msgspec.Raw()
_LIST: Final = re.compile(rb"\s*\[\s*([\"\[\d-])")  # the first sign of a list of prompts or tokens


class TokenEstimate(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one request."""

    prompt: int
    output_bound: int  # what its field or the context allows: the most that it may use
    output_expected: int  # at most the bound

    @property
    def expected_total(self) -> int:
        """The prompt and the expected output."""
        return min(self.prompt + self.output_expected, CONTEXT_TOKENS_MAX)


class RequestedTokens(msgspec.Struct, frozen=True, gc=False):
    """What a body says about its tokens."""

    prompt: int  # of all prompts
    sequences: int = 0  # outputs: choices of each prompt; 0: the endpoint generates none
    limit: int | None = None  # of each sequence; None: only the context limits it

    def estimate(
        self, expected: float, *, context_tokens: int = CONTEXT_TOKENS_MAX
    ) -> TokenEstimate:
        """Return the estimate, with `expected` tokens for each sequence.

        `context_tokens` is the context window of the model, if it is known.
        """
        left = max(0, context_tokens - self.prompt)
        bound = left if self.limit is None else min(self.limit, left)
        output_bound = min(bound * self.sequences, CONTEXT_TOKENS_MAX)
        output_expected = min(round(expected * self.sequences), output_bound)
        return TokenEstimate(self.prompt, output_bound, output_expected)

    def expected_output(self, expected: float) -> int:
        """Return the output, with `expected` tokens for each sequence.

        Intake calls it for every item, so it does not build a `TokenEstimate`.
        """
        output = round(expected * self.sequences)
        if self.limit is not None and output > self.limit * self.sequences:
            output = self.limit * self.sequences
        return output if output < CONTEXT_TOKENS_MAX else CONTEXT_TOKENS_MAX

    def total_with(self, output: int) -> int:
        """Return the tokens of the prompt and of such an output."""
        total = self.prompt + output
        return total if total < CONTEXT_TOKENS_MAX else CONTEXT_TOKENS_MAX

    def reservation(self, estimate: TokenEstimate) -> int:
        """Return the tokens that a limit reserves until the usage is known.

        A limit that the client named counts whole, as in the OpenAI API; without one, what is
        expected.
        """
        output = estimate.output_expected if self.limit is None else estimate.output_bound
        return min(self.prompt + output, CONTEXT_TOKENS_MAX)


class _Chat(msgspec.Struct, gc=False):
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Completion(msgspec.Struct, gc=False):
    prompt: msgspec.Raw = _ABSENT
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None


class _Pooled(msgspec.Struct, gc=False):
    input: msgspec.Raw = _ABSENT


# Numbers may be texts, as in pydantic's lax mode, which vLLM uses.
_CHAT: Final = msgspec.json.Decoder(_Chat, strict=False)
_COMPLETION: Final = msgspec.json.Decoder(_Completion, strict=False)
_POOLED: Final = msgspec.json.Decoder(_Pooled)


def requested_tokens(endpoint: str, body: bytes) -> RequestedTokens:
    """Return what a body of `endpoint` says about its tokens.

    A body with a field of a wrong type counts as one without fields; the engine refuses it.
    """
    text_tokens = _checked(len(body) // BYTES_PER_TOKEN)
    try:
        if endpoint == "/v1/chat/completions":
            return _of_chat(_CHAT.decode(body), text_tokens)
        if endpoint == "/v1/completions":
            return _of_completion(_COMPLETION.decode(body), text_tokens)
        if b"[" not in body:
            return RequestedTokens(text_tokens)
        _, tokens = _prompts_and_tokens(_POOLED.decode(body).input)
        return RequestedTokens(text_tokens if tokens is None else tokens)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return RequestedTokens(text_tokens, int(endpoint in GENERATING))


def _of_chat(chat: _Chat, text_tokens: int) -> RequestedTokens:
    limit = chat.max_tokens if chat.max_completion_tokens is None else chat.max_completion_tokens
    choices = 1 if chat.n is None else max(1, _checked(chat.n))
    return RequestedTokens(text_tokens, choices, None if limit is None else _checked(limit))


def _of_completion(completion: _Completion, text_tokens: int) -> RequestedTokens:
    prompts, tokens = _prompts_and_tokens(completion.prompt)
    choices = max(1, _checked(completion.n or 1), _checked(completion.best_of or 1))
    limit = COMPLETION_TOKENS if completion.max_tokens is None else completion.max_tokens
    prompt = text_tokens if tokens is None else tokens
    return RequestedTokens(prompt, _checked(prompts * choices), _checked(limit))


def _checked(number: int) -> int:
    """Return a number that a client gave, before any arithmetic: no float holds 10**400.

    Intake calls it for every item; comparisons take a third of the time of `min` and `max`.
    """
    if number > CONTEXT_TOKENS_MAX:
        return CONTEXT_TOKENS_MAX
    return number if number > 0 else 0


def _prompts_and_tokens(prompt: msgspec.Raw) -> tuple[int, int | None]:
    """Return how many prompts the JSON text `prompt` holds, and their tokens if they are tokens.

    Counts bytes instead of decoding: decoding a list of a few MB would block an event loop.
    """
    found = _LIST.match(prompt)
    if found is None:
        return 1, None
    text = bytes(prompt)
    if found[1] == b'"':
        unescaped = text.replace(rb"\\", b"").replace(rb"\"", b"")
        return unescaped.count(b'"') // 2, None
    prompts = text.count(b"[") - 1 if found[1] == b"[" else 1
    return prompts, min(text.count(b",") + 1, CONTEXT_TOKENS_MAX)


def given_count(number: object) -> int:
    """Return a number that a client gave in a decoded body, before any arithmetic.

    0 stands for all that is no positive integer.
    """
    return _checked(number) if type(number) is int else 0
