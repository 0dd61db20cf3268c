"""The events of one stream on their way to its client: counted, checked, otherwise unchanged.

Usage is always asked of the engine and counted here; the client sees what it asked for.
"""

import re

import msgspec

from gpu_consumers.engines.engine import EmitEvent, EngineAnswer, UsageMeter
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.error_fields import NULL, error_event_answer, has_error
from gpu_consumers.engines.stream_options import StreamOptions
from gpu_consumers.engines.token_usage import Usage, check_utf8, is_json_object, with_usage

DONE = b"[DONE]"
"""The payload of the last event of a stream of the OpenAI API."""

_OK, _BAD_GATEWAY = 200, 502
_USAGE_BEGINS = b',"usage":{'
_USAGE_NULL = b',"usage":null'
_USAGE_FIELD = re.compile(rb',"usage":\{(?:[^{}]|\{[^{}]*\})*\}')  # numbers, two levels deep


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: msgspec.Raw = NULL  # vLLM's own, where the client asked for them
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
    """What one stream has said so far."""

    def __init__(
        self,
        emit: EmitEvent,
        wanted: StreamOptions,
        meter: UsageMeter | None = None,
        *,
        strips_usage: bool = False,
        choices_per_prompt: int = 1,
    ) -> None:
        """`strips_usage`: counts within chunks were asked for by us, not by the client.

        A client that asked for counts at the end sees null before, as OpenAI's API has it. Choices
        are numbered through all prompts of a completion, `choices_per_prompt` of each.
        """
        self._emit = emit
        self._wants_usage = wanted.include_usage is True
        self._strips_usage = strips_usage
        self._stripped = _USAGE_NULL if self._wants_usage else b""
        self._total: Usage | None = None  # of all choices, stated at the end
        self._choices_per_prompt = choices_per_prompt
        self._running: dict[int, Usage] = {}  # by prompt, the last that a chunk of it stated
        self._output_tokens: dict[int, int] = {}  # by choice, as stated or else counted
        self._failure: EngineAnswer | None = None
        self._has_ended = False
        self.has_emitted = False
        if meter is not None:
            meter.counted = self.counted

    @property
    def began(self) -> bool:
        """Whether anything has come."""
        return self.has_emitted or self._has_ended

    def take(self, payload: bytes) -> bool:
        """Emit one event, or keep it if it is for us; False when it ends the stream."""
        if payload == DONE:
            self._has_ended = True
            return False
        try:
            check_utf8(payload)
            chunk = _chunk.decode(payload)
        except msgspec.ValidationError:
            if is_json_object(payload):  # of another shape; the client may know it
                self._pass_on(payload)
                return True
            return self._fail(_fault("answer_not_json", "A stream's event is no JSON object."))
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return self._fail(_fault("answer_not_json", "A stream's event is not JSON."))
        is_error = has_error(chunk.error)
        if is_error and not chunk.choices:
            return self._fail(error_event_answer(chunk.error))
        if chunk.usage is not None and not chunk.choices:
            self._total = chunk.usage
            if self._wants_usage:
                self._pass_on(payload)
            return True
        # In this order: a listener that takes no more is not charged for what it refused.
        self._pass_on(without_usage(payload, self._stripped) if self._strips_usage else payload)
        self._count(chunk, payload)
        return not is_error or self._fail(error_event_answer(chunk.error))

    def end(self) -> EngineAnswer:
        """Return how the stream ended; one without its last event broke off."""
        if self._failure is not None or not self._has_ended:
            return self.interrupted()
        return self.counted(EngineAnswer(_OK, b""))

    def interrupted(self, cause: EngineAnswer | None = None) -> EngineAnswer:
        """Return how a stream ended that broke off, for `cause` if nothing that it said."""
        message = "The stream broke off."
        return self.counted(self._failure or cause or _fault("stream_interrupted", message))

    def counted(self, answer: EngineAnswer) -> EngineAnswer:
        """Return the answer with the counts of the whole stream, or of what was emitted of it."""
        if self._total is not None:
            return with_usage(answer, self._total)
        by_prompt = [with_usage(answer, usage) for usage in self._running.values()]
        return msgspec.structs.replace(
            answer,
            input_tokens=sum(said.input_tokens for said in by_prompt),
            output_tokens=sum(self._output_tokens.values()),
            cached_tokens=sum(said.cached_tokens for said in by_prompt),
            reasoning_tokens=sum(said.reasoning_tokens for said in by_prompt),
        )

    def _pass_on(self, payload: bytes) -> None:
        self.has_emitted = True
        self._emit(payload)

    def _fail(self, failure: EngineAnswer) -> bool:
        self._failure = failure
        self._has_ended = True
        return False

    def _count(self, chunk: _Chunk, payload: bytes) -> None:
        """Note the tokens that the chunk states; without that, those that it names."""
        for choice in chunk.choices:
            counted = self._output_tokens.get(choice.index, 0)
            if chunk.usage is not None and chunk.usage.completion_tokens is not None:
                self._running[choice.index // self._choices_per_prompt] = chunk.usage
                counted = max(counted, chunk.usage.completion_tokens)
            else:
                counted += _tokens_named(choice, opens_role=b'"role":' in payload)
            self._output_tokens[choice.index] = counted


def _tokens_named(choice: _Choice, *, opens_role: bool) -> int:
    """Count token ids or log probabilities; without either, a chunk that opens no role is one."""
    try:
        ids = _token_ids.decode(choice.token_ids)
        if ids is not None:
            return len(ids)
        logprobs = _logprobs.decode(choice.logprobs)
        named = None if logprobs is None else logprobs.content or logprobs.tokens
    except msgspec.ValidationError:
        named = None
    return len(named) if named else int(not opens_role)


def without_usage(payload: bytes, instead: bytes = b"") -> bytes:
    """Return a chunk with `instead` of its field `usage`, every other byte as it was.

    In a string the field's quotes would be escaped, so what is found is the field.
    """
    found = _USAGE_FIELD.search(payload, max(0, payload.rfind(_USAGE_BEGINS)))
    if found is None:
        return payload
    return payload[: found.start()] + instead + payload[found.end() :]


def _fault(code: str, message: str) -> EngineAnswer:
    return error_answer(_BAD_GATEWAY, message, type_="server_error", code=code)
