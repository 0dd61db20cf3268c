"""Parses bodies for the simulated engine into reply plans, or into error answers."""

import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, TypeVar

import msgspec

from core.bodies.own_fields import StreamField, is_stream_requested
from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS_DEFAULT = 64
STREAM_TOKENS_DEFAULT = 16
"""Length of a stream without a requested one: the beginning of the reply that does not stream."""
OUTPUT_TOKENS_MAX = 4096
"""Longest reply; a larger `max_tokens` ends with `stop` here."""
CHOICES_MAX = 128
ANSWER_TOKENS_MAX = 1_000_000
"""Tokens of all choices for all prompts of one body: 4 MB."""

_HEAD_CHARS = len("Simulated 00000000. ")
_SENTENCE = "No model has read the prompt. "


class GeneratedReply(msgspec.Struct, frozen=True, gc=False):
    """One choice. The text is ASCII and needs no escape in JSON."""

    tokens: int
    text: bytes
    finish: bytes

    def pieces(self) -> list[bytes]:
        """Return the text token by token; one empty piece without tokens."""
        count = max(1, self.tokens)
        starts = [index * BYTES_PER_TOKEN for index in range(count)]
        ends = [*starts[1:], len(self.text)]
        return [self.text[start:end] for start, end in zip(starts, ends, strict=True)]


def digest_of(body: bytes) -> int:
    """Return a 32-bit checksum of the body."""
    return zlib.crc32(body)


def input_tokens_of(body: bytes) -> int:
    """Return the tokens of a body, including all of its JSON."""
    return len(body) // BYTES_PER_TOKEN


def generate_replies(
    digest: int,
    count: int,
    requested_tokens: int | None,
    stop: str | Sequence[str] | None,
    *,
    default: int = OUTPUT_TOKENS_DEFAULT,
) -> list[GeneratedReply]:
    """Return one reply a choice, each with its own head; truncated before the first of `stop`."""
    ends_itself = requested_tokens is None
    tokens, tail, finish = reply_layout(
        default if requested_tokens is None else requested_tokens, ends_itself
    )
    stops = [stop] if isinstance(stop, str) else stop or ()
    generated = []
    for choice in range(count):
        text = b"Simulated %08x. %b" % ((digest + choice) & 0xFFFFFFFF, tail)
        found = [at for end in stops if end and (at := text.find(end.encode())) >= 0]
        if found:
            kept = text[: min(found)]
            kept_tokens = min(tokens, -(-len(kept) // BYTES_PER_TOKEN))
            generated.append(GeneratedReply(kept_tokens, kept, b"stop"))
        else:
            generated.append(GeneratedReply(tokens, text, finish))
    return generated


@lru_cache(maxsize=1024)
def reply_layout(requested_tokens: int, ends_itself: bool) -> tuple[int, bytes, bytes]:
    """Return a reply's output tokens, the text after its head, and its finish reason."""
    tokens = min(requested_tokens, OUTPUT_TOKENS_MAX)
    tail_chars = max(0, tokens * BYTES_PER_TOKEN - _HEAD_CHARS)
    tail = (_SENTENCE * (tail_chars // len(_SENTENCE) + 1))[:tail_chars].encode()
    return tokens, tail, b"length" if requested_tokens == tokens and not ends_itself else b"stop"


INPUTS_MAX = 2048
"""Inputs in one body, as with OpenAI's embeddings."""

Input = str | list[str | int | list[int]]
_Body = TypeVar("_Body")


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _TextBody(msgspec.Struct, gc=False):
    """Fields of both text endpoints."""

    max_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: StreamField = None
    stream_options: _StreamOptions | None = None


class _Message(msgspec.Struct, gc=False):
    role: str
    content: str | list[msgspec.Raw] | None = None


class ChatBody(_TextBody, kw_only=True, gc=False):
    """A body of `/v1/chat/completions`."""

    messages: list[_Message]
    model: str | None = None
    max_completion_tokens: int | None = None

    @property
    def requested_tokens(self) -> int | None:
        """The requested reply length; None for the default."""
        requested = self.max_completion_tokens
        return self.max_tokens if requested is None else requested

    @property
    def is_plain(self) -> bool:
        """Whether the body requests one reply without streaming and stop sequences."""
        requested = self.requested_tokens
        return (
            (self.stream is None or self.stream is False)
            and (self.n is None or self.n == 1)
            and not self.stop
            and (requested is None or requested > 0)
        )


class _CompletionBody(_TextBody, kw_only=True):
    prompt: Input


class EmbeddingsBody(msgspec.Struct):
    """A body of `/v1/embeddings`: texts or tokens, or one or more conversations."""

    input: Input | None = None
    messages: list[_Message | list[_Message]] | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def inputs(self) -> list[str | list[int]] | str:
        """Return the separate inputs, or an error message."""
        if self.input is not None:
            return split_inputs(self.input)
        if not self.messages:
            return "Neither `input` nor `messages` says anything."
        conversations = [one for one in self.messages if isinstance(one, list)]
        if not conversations:
            return [_text_of(self.messages)]
        if len(conversations) < len(self.messages) or not all(conversations):
            return "`messages` mixes messages and conversations, or one of these is empty."
        return [_text_of(conversation) for conversation in conversations]


class ReplyPlan(msgspec.Struct, frozen=True, gc=False):
    """The reply to generate for a body."""

    digest: int
    input_tokens: int
    choices: list[GeneratedReply]
    stream: bool
    include_usage: bool

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(choice.tokens for choice in self.choices)


_chat_body = msgspec.json.Decoder(ChatBody)
_completion_body = msgspec.json.Decoder(_CompletionBody)


def parse_chat(body: bytes) -> ChatBody | EngineAnswer:
    """Return the parsed body, or an error answer."""
    chat = decode_body(_chat_body.decode, body)
    if isinstance(chat, ChatBody) and not chat.messages:
        return error_answer(400, "`messages` is empty.", param="messages")
    return chat


def plan_chat(body: bytes) -> ReplyPlan | EngineAnswer:
    """Return the reply plan of a chat body, or an error answer."""
    chat = parse_chat(body)
    return chat if isinstance(chat, EngineAnswer) else plan_parsed_chat(chat, body)


def plan_parsed_chat(chat: ChatBody, body: bytes) -> ReplyPlan | EngineAnswer:
    """Return the reply plan of a parsed chat, or an error answer."""
    return _plan(body, chat, chat.requested_tokens, prompts=1)


def plan_completion(body: bytes) -> ReplyPlan | EngineAnswer:
    """Return the reply plan of a legacy completion, or an error answer."""
    completion = decode_body(_completion_body.decode, body)
    if isinstance(completion, EngineAnswer):
        return completion
    prompts = split_inputs(completion.prompt)
    if isinstance(prompts, str):
        return error_answer(400, prompts, param="prompt")
    return _plan(body, completion, completion.max_tokens, prompts=len(prompts))


def split_inputs(value: Input) -> list[str | list[int]] | str:
    """Return the separate inputs, or an error message."""
    if isinstance(value, str):
        return [value]
    texts = [one for one in value if isinstance(one, str)]
    tokens = [one for one in value if isinstance(one, int)]
    lists = [one for one in value if isinstance(one, list)]
    if not value or any(not one for one in lists):
        return "The input is empty."
    if len(value) > INPUTS_MAX and not tokens:
        return f"More than {INPUTS_MAX} inputs."
    if len(tokens) == len(value):
        return [tokens]
    if len(texts) == len(value):
        return [*texts]
    if len(lists) == len(value):
        return [*lists]
    return "The input mixes texts and tokens."


def _text_of(conversation: object) -> str:
    return msgspec.json.encode(conversation).decode()


def decode_body(decode: Callable[[bytes], _Body], body: bytes) -> _Body | EngineAnswer:
    """Return the decoded body, or an error answer.

    msgspec's messages name types and paths, never values.
    """
    try:
        return decode(body)
    except RecursionError:
        return error_answer(400, "The body is nested too deeply.")
    except (msgspec.DecodeError, UnicodeDecodeError) as mistake:
        reason = mistake if isinstance(mistake, msgspec.DecodeError) else "it is not UTF-8"
        return error_answer(400, f"The body is not valid: {reason}")


def _plan(
    body: bytes, request: _TextBody, tokens: int | None, *, prompts: int
) -> ReplyPlan | EngineAnswer:
    if tokens is not None and tokens < 1:
        return error_answer(400, "`max_tokens` must be at least 1.", param="max_tokens")
    count = 1 if request.n is None else request.n
    if not 1 <= count <= CHOICES_MAX:
        return error_answer(400, f"`n` must be 1 to {CHOICES_MAX}.", param="n")
    try:
        stream = is_stream_requested(request.stream)
    except ValueError as mistake:
        return error_answer(400, f"{mistake}.", param="stream")
    default = STREAM_TOKENS_DEFAULT if stream else OUTPUT_TOKENS_DEFAULT
    longest = min(default if tokens is None else tokens, OUTPUT_TOKENS_MAX)
    if longest * count * prompts > ANSWER_TOKENS_MAX:
        message = f"An answer has at most {ANSWER_TOKENS_MAX} tokens: prompts, `n`, `max_tokens`."
        return error_answer(400, message, param="n" if prompts == 1 else "prompt")
    digest = digest_of(body)
    return ReplyPlan(
        digest,
        input_tokens_of(body),
        generate_replies(digest, count, tokens, request.stop, default=default) * prompts,
        stream,
        request.stream_options is not None and request.stream_options.include_usage is True,
    )
