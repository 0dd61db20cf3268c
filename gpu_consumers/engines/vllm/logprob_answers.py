"""Encodes the log probabilities of an answer piece by piece.

vLLM builds all objects of an answer in one iteration of the event loop: 12 answers of 1,900 tokens
with 20 candidates each are half a million objects, for which the calls of others wait. Here vLLM
gets handles instead; when its response is complete, its own functions build and encode a few
positions at a time, and the event loop runs in between. Bytes of the answer stay the same. Pure,
except for the pause.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Final

import msgspec

VALUES_AT_ONCE: Final = 256
"""Candidates that are encoded without a pause: 2 to 3 ms of CPU."""

_Fields = dict[str, msgspec.Raw]
_FIELDS: Final = msgspec.json.Decoder(_Fields)
_CHOICES: Final = msgspec.json.Decoder(list[_Fields])


class AnswerTooLargeError(Exception):
    """The answer would have more bytes than allowed."""


class LogprobsHandle(dict[int, Any]):
    """Stands for all positions of a sequence in a list of positions; it is empty to vLLM."""

    def __init__(self, positions: Sequence[Any]) -> None:
        super().__init__()
        self.positions = positions


@dataclass(frozen=True, slots=True)
class _Deferred:
    """One call of vLLM's function that builds the log probabilities of a choice."""

    placeholder: Any  # what vLLM put into the choice
    create: Callable[..., Any]
    token_ids: Sequence[int]
    handles: Sequence[LogprobsHandle]
    options: dict[str, Any]


class ResponseLogprobs:
    """The log probabilities of one response of vLLM, before they are encoded."""

    def __init__(self) -> None:
        self._deferred: dict[int, _Deferred] = {}  # by the placeholder's identity
        self._prompts: dict[int, Sequence[Any]] = {}  # by the index of the prompt

    def add_output(self, output: Any) -> None:
        """Replace the positions of a final output of the engine with handles."""
        if output.prompt_logprobs:
            self._prompts[_prompt_index(output.request_id)] = output.prompt_logprobs
            output.prompt_logprobs = [LogprobsHandle(output.prompt_logprobs)]
        for one in output.outputs:
            if one.logprobs is not None:
                one.logprobs = [LogprobsHandle(one.logprobs)]

    def defer(self, create: Callable[..., Any], tokens: Sequence[int], **options: Any) -> Any:
        """Return a placeholder for what `create` builds of the tokens."""
        handles = options.pop("top_logprobs")
        placeholder = create(token_ids=[], top_logprobs=[], **options)
        self._deferred[id(placeholder)] = _Deferred(placeholder, create, tokens, handles, options)
        return placeholder

    def pop_deferred(self, placeholder: Any) -> _Deferred | None:
        """Remove and return the deferred call of a placeholder; None for any other object."""
        return self._deferred.pop(id(placeholder), None)

    def prompt_positions(self) -> list[Sequence[Any]]:
        """Return the positions of all prompts in their order; none if they were not requested."""
        return [self._prompts[index] for index in sorted(self._prompts)]


_current: ContextVar[ResponseLogprobs | None] = ContextVar("current", default=None)


@contextmanager
def deferred_logprobs(*, is_deferred: bool) -> Iterator[ResponseLogprobs]:
    """Defer the log probabilities of the response that vLLM builds within, if `is_deferred`."""
    response = ResponseLogprobs()
    token = _current.set(response if is_deferred else None)
    try:
        yield response
    finally:
        _current.reset(token)


def defer_outputs(engine: Any) -> None:
    """Let the engine's outputs have handles within `deferred_logprobs`."""
    generate = engine.generate

    def generate_deferred(*args: Any, **options: Any) -> Any:
        outputs = generate(*args, **options)
        return outputs if (response := _current.get()) is None else _handled(outputs, response)

    engine.generate = generate_deferred


async def _handled(
    outputs: AsyncGenerator[Any, None], response: ResponseLogprobs
) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            response.add_output(output)
            yield output


def defer_creation(serving: Any, name: str) -> None:
    """Let a serving object's method that builds log probabilities of a choice be deferred."""
    create = getattr(serving, name)

    def create_deferred(token_ids: Sequence[int], top_logprobs: Any, **options: Any) -> Any:
        if (response := _current.get()) is None:
            return create(token_ids=token_ids, top_logprobs=top_logprobs, **options)
        return response.defer(create, token_ids, top_logprobs=top_logprobs, **options)

    setattr(serving, name, create_deferred)


class AnswerLogprobs:
    """The encoded log probabilities of all choices of an answer so far."""

    def __init__(
        self, encode_prompt: Callable[[list[Any]], bytes], lock: asyncio.Lock, bytes_max: int
    ) -> None:
        """`encode_prompt` encodes some positions of a prompt as a list.

        `lock` is shared by all answers of an engine, so that one piece is encoded at a time.
        """
        self._encode_prompt, self._lock, self._bytes_max = encode_prompt, lock, bytes_max
        self._choices: list[tuple[bytes | None, bytes | None]] = []
        self._prompt: bytes | None = None
        self._bytes = 0

    async def add(self, response: Any, logprobs: ResponseLogprobs) -> None:
        """Encode the log probabilities of a response, and remove them from it.

        Raises AnswerTooLargeError.
        """
        prompts: list[bytes] = []
        positions = logprobs.prompt_positions()
        if hasattr(response, "prompt_logprobs"):  # a chat: all waves have the same prompt
            if positions:
                response.prompt_logprobs = None
            if positions and self._prompt is None:
                self._prompt = await self._encoded_prompt(positions[0])
                self._count(self._prompt)
        else:
            prompts = [await self._encoded_prompt(one) for one in positions]
        answers = len(response.choices) // max(1, len(prompts))
        for position, choice in enumerate(response.choices):
            of_prompt = of_choice = None
            if prompts:
                choice.prompt_logprobs = None
                of_prompt = prompts[position // answers]
                self._count(of_prompt)
            if (deferred := logprobs.pop_deferred(choice.logprobs)) is not None:
                choice.logprobs = None
                of_choice = await self._encoded_choice(deferred)
            self._choices.append((of_choice, of_prompt))

    def insert_into(self, body: bytes) -> bytes:
        """Return the encoded response with the log probabilities of its choices."""
        if self._prompt is None and not any(map(any, self._choices)):
            return body
        fields = _FIELDS.decode(body)
        choices = _CHOICES.decode(fields["choices"])
        for choice, (of_choice, of_prompt) in zip(choices, self._choices, strict=True):
            if of_choice is not None:
                choice["logprobs"] = msgspec.Raw(of_choice)
            if of_prompt is not None:
                choice["prompt_logprobs"] = msgspec.Raw(of_prompt)
        if self._prompt is not None:
            fields["prompt_logprobs"] = msgspec.Raw(self._prompt)
        return msgspec.json.encode(fields | {"choices": choices})

    async def _encoded_prompt(self, positions: Sequence[Any]) -> bytes:
        parts: list[bytes] = []
        pieces = _pieces([LogprobsHandle(positions)], len(positions))
        size = await self._run(_prompt_steps(self._encode_prompt, pieces, parts))
        self._bytes -= size  # counted with each choice that has them
        return b"[%b]" % b",".join(parts)

    async def _encoded_choice(self, deferred: _Deferred) -> bytes:
        parts: dict[str, list[bytes]] = {}
        await self._run(_choice_steps(deferred, parts))
        if not parts:  # no tokens
            return bytes(deferred.placeholder.model_dump_json().encode())
        return msgspec.json.encode(
            {name: msgspec.Raw(b"[%b]" % b",".join(values)) for name, values in parts.items()}
        )

    async def _run(self, steps: Iterator[int]) -> int:
        """Run one step in each iteration of the event loop; return the sum of their bytes."""
        total = 0
        while True:
            async with self._lock:
                size = next(steps, None)
            if size is None:
                return total
            total += size
            self._count(size)
            await asyncio.sleep(0)

    def _count(self, part: bytes | int) -> None:
        """Count bytes that the answer will have. Raises AnswerTooLargeError."""
        self._bytes += part if isinstance(part, int) else len(part)
        if self._bytes > self._bytes_max:
            raise AnswerTooLargeError


def _prompt_steps(
    encode: Callable[[list[Any]], bytes], pieces: Iterator[list[Any]], parts: list[bytes]
) -> Iterator[int]:
    """Encode a piece of a prompt in each step; yield its bytes."""
    for piece in pieces:
        parts.append(encode(piece)[1:-1])
        yield len(parts[-1])


def _choice_steps(deferred: _Deferred, parts: dict[str, list[bytes]]) -> Iterator[int]:
    """Build and encode a piece of what vLLM's function returns in each step; yield its bytes."""
    start, offset = 0, dict[str, int]()
    for piece in _pieces(deferred.handles, len(deferred.token_ids)):
        tokens = deferred.token_ids[start : start + len(piece)]
        start += len(piece)
        built = deferred.create(token_ids=tokens, top_logprobs=piece, **(deferred.options | offset))
        if hasattr(built, "text_offset"):  # of a completion; the next piece counts on
            offset["initial_text_offset"] = built.text_offset[-1] + len(built.tokens[-1])
        encoded = built.model_dump_json().encode()
        for name, values in _FIELDS.decode(encoded).items():
            parts.setdefault(name, []).append(bytes(values)[1:-1])
        yield len(encoded)


def _pieces(handles: Sequence[LogprobsHandle], count: int) -> Iterator[list[Any]]:
    """Yield the first `count` positions, as many at a time as have `VALUES_AT_ONCE` candidates."""
    piece: list[Any] = []
    values = 0
    for position in islice(chain.from_iterable(map(_positions, handles)), count):
        piece.append(position)
        values += len(position or (0,))
        if values >= VALUES_AT_ONCE:
            yield piece
            piece, values = [], 0
    if piece:
        yield piece


def _positions(handle: LogprobsHandle) -> Iterator[Any]:
    return (handle.positions[index] for index in range(len(handle.positions)))


def _prompt_index(request_id: str) -> int:
    """Return the index of the prompt from vLLM's id: `cmpl-…-3` of a completion; a chat has one."""
    end = request_id.rpartition("-")[2]
    return int(end) if request_id.startswith("cmpl-") and end.isdecimal() else 0
