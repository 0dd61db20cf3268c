"""The events of one stream on their way to its client: checked, counted, otherwise unchanged.

The engine always reports usage; it is counted here, and the client sees what it requested.
"""

import re

import msgspec

from core.bodies.own_fields import StreamField, is_stream_requested
from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, UsageMeter
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.response_fields import (
    NULL,
    Usage,
    check_utf8,
    error_event_answer,
    has_error,
    is_json_object,
    with_usage,
)


class StreamOptions(msgspec.Struct, frozen=True):
    """The field `stream_options`: which usage the client wants to see."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM's own


class _StreamFields(msgspec.Struct):
    stream: StreamField = None
    stream_options: msgspec.Raw = NULL


class _Choices(msgspec.Struct):
    n: int | None = None


_stream_fields = msgspec.json.Decoder(_StreamFields)
_choices = msgspec.json.Decoder(_Choices, strict=False)  # as vLLM reads it
_options = msgspec.json.Decoder(StreamOptions | None)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_optional_fields = msgspec.json.Decoder(dict[str, msgspec.Raw] | None)


def requested_stream_options(body: bytes) -> StreamOptions | None:
    """Return the client's `stream_options` if the body requests a stream; None if it does not.

    Unreadable options count as none: the engine rejects them.
    """
    if b'"stream"' not in body and b"\\u" not in body:  # an escape may spell the name
        return None
    try:
        fields = _stream_fields.decode(body)
        is_stream = is_stream_requested(fields.stream)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if not is_stream:
        return None
    try:
        return _options.decode(fields.stream_options) or StreamOptions()
    except msgspec.ValidationError:
        return StreamOptions()


def choices_per_prompt(body: bytes) -> int:
    """Return the number of choices of each prompt; 1 if the body has no valid `n`.

    The body is a JSON object.
    """
    try:
        return max(_choices.decode(body).n or 1, 1)
    except msgspec.ValidationError:
        return 1


def with_usage_requested(body: bytes) -> bytes:
    """Return a streaming body with `include_usage` set, every other field unchanged.

    Unchanged if the options are no object: the upstream rejects them.
    """
    fields = _fields.decode(body)
    try:
        options = _optional_fields.decode(fields.get("stream_options", NULL))
    except msgspec.ValidationError:
        return body
    with_usage = (options or {}) | {"include_usage": msgspec.Raw(b"true")}
    return msgspec.json.encode(fields | {"stream_options": with_usage})


DONE = b"[DONE]"
"""The payload of the last event of a stream of the OpenAI API."""

_OK, _BAD_GATEWAY = 200, 502
_USAGE_START = b',"usage":{'
_USAGE_NULL = b',"usage":null'
_USAGE_FIELD = re.compile(rb',"usage":\{(?:[^{}]|\{[^{}]*\})*\}')  # numbers, two levels deep


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: msgspec.Raw = NULL  # vLLM's own, if the client requested them
    logprobs: msgspec.Raw = NULL


class _Logprobs(msgspec.Struct):
    content: list[msgspec.Raw] | None = None  # of a chat
    tokens: list[msgspec.Raw] | None = None  # of a completion


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: msgspec.Raw = NULL


_chunk = msgspec.json.Decoder(_Chunk)
_token_ids = msgspec.json.Decoder(list[int] | None)
_logprobs = msgspec.json.Decoder(_Logprobs | None)


class StreamEvents:
    """Passes on the events of one stream and counts its tokens."""

    def __init__(
        self,
        emit: EmitEvent,
        requested: StreamOptions,
        meter: UsageMeter | None = None,
        *,
        strips_usage: bool = False,
        choices_per_prompt: int = 1,
    ) -> None:
        """`strips_usage`: the usage within chunks was requested by us, not by the client.

        A client that requested usage at the end sees null before, as with OpenAI's API. Choices are
        numbered across all prompts of a completion, `choices_per_prompt` of each.
        """
        self._emit = emit
        self._shows_usage = requested.include_usage is True
        self._strips_usage = strips_usage
        self._replacement = _USAGE_NULL if self._shows_usage else b""
        self._total: Usage | None = None  # of all choices, reported at the end
        self._choices_per_prompt = choices_per_prompt
        self._running: dict[int, Usage] = {}  # by prompt, the latest that a chunk reported
        self._output_tokens: dict[int, int] = {}  # by choice, reported or else counted
        self._failure: EngineAnswer | None = None
        self._has_ended = False
        self.has_emitted = False
        if meter is not None:
            meter.with_usage = self.with_usage

    @property
    def has_started(self) -> bool:
        """Whether any event has arrived."""
        return self.has_emitted or self._has_ended

    def on_event(self, payload: bytes) -> bool:
        """Emit one event, or keep it if it is for us; return False if it ends the stream."""
        if payload == DONE:
            self._has_ended = True
            return False
        try:
            check_utf8(payload)
            chunk = _chunk.decode(payload)
        except msgspec.ValidationError:
            if is_json_object(payload):  # of another shape, which the client may know
                self._pass_on(payload)
                return True
            return self._fail(
                error_answer(
                    _BAD_GATEWAY, "A stream's event is no JSON object.", code="answer_not_json"
                )
            )
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return self._fail(
                error_answer(_BAD_GATEWAY, "A stream's event is not JSON.", code="answer_not_json")
            )
        is_error = has_error(chunk.error)
        if is_error and not chunk.choices:
            return self._fail(error_event_answer(chunk.error))
        if chunk.usage is not None and not chunk.choices:
            self._total = chunk.usage
            if self._shows_usage:
                self._pass_on(payload)
            return True
        # Emit before counting: a listener that raises is not charged for the event.
        self._pass_on(without_usage(payload, self._replacement) if self._strips_usage else payload)
        self._count(chunk, payload)
        return not is_error or self._fail(error_event_answer(chunk.error))

    def end(self) -> EngineAnswer:
        """Return the stream's answer; without a last event the stream was interrupted."""
        if self._failure is not None or not self._has_ended:
            return self.interrupted()
        return self.with_usage(EngineAnswer(_OK, b""))

    def interrupted(self, cause: EngineAnswer | None = None) -> EngineAnswer:
        """Return the answer of an interrupted stream: its own error, else `cause`."""
        message = "The stream broke off."
        return self.with_usage(
            self._failure or cause or error_answer(_BAD_GATEWAY, message, code="stream_interrupted")
        )

    def with_usage(self, answer: EngineAnswer) -> EngineAnswer:
        """Return the answer with the usage of the stream, or of the part that was emitted."""
        if self._total is not None:
            return with_usage(answer, self._total)
        by_prompt = [with_usage(answer, usage) for usage in self._running.values()]
        return msgspec.structs.replace(
            answer,
            input_tokens=sum(prompt.input_tokens for prompt in by_prompt),
            output_tokens=sum(self._output_tokens.values()),
            cached_tokens=sum(prompt.cached_tokens for prompt in by_prompt),
            reasoning_tokens=sum(prompt.reasoning_tokens for prompt in by_prompt),
        )

    def _pass_on(self, payload: bytes) -> None:
        self.has_emitted = True
        self._emit(payload)

    def _fail(self, failure: EngineAnswer) -> bool:
        self._failure = failure
        self._has_ended = True
        return False

    def _count(self, chunk: _Chunk, payload: bytes) -> None:
        """Record the tokens that the chunk reports, or else count those that it contains."""
        for choice in chunk.choices:
            count = self._output_tokens.get(choice.index, 0)
            if chunk.usage is not None and chunk.usage.completion_tokens is not None:
                self._running[choice.index // self._choices_per_prompt] = chunk.usage
                count = max(count, chunk.usage.completion_tokens)
            else:
                count += _count_tokens(choice, opens_role=b'"role":' in payload)
            self._output_tokens[choice.index] = count


def _count_tokens(choice: _Choice, *, opens_role: bool) -> int:
    """Count token ids or log probabilities; without either, a chunk is one token.

    A chunk that opens a role is none.
    """
    try:
        ids = _token_ids.decode(choice.token_ids)
        if ids is not None:
            return len(ids)
        logprobs = _logprobs.decode(choice.logprobs)
        tokens = None if logprobs is None else logprobs.content or logprobs.tokens
    except msgspec.ValidationError:
        tokens = None
    return len(tokens) if tokens else int(not opens_role)


def without_usage(payload: bytes, replacement: bytes = b"") -> bytes:
    """Return a chunk with its field `usage` replaced, every other byte unchanged.

    The match cannot be inside a string, where the quotes would be escaped.
    """
    found = _USAGE_FIELD.search(payload, max(0, payload.rfind(_USAGE_START)))
    if found is None:
        return payload
    return payload[: found.start()] + replacement + payload[found.end() :]
