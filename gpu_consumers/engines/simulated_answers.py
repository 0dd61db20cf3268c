"""Deterministic answers in the shape of the OpenAI API; each says that it is simulated.

One token is four bytes: of the whole body for input, of the content for output. Pure functions.
"""

import hashlib
import math
import struct
import zlib
from base64 import b64encode
from functools import lru_cache
from typing import Literal

import msgspec

from gpu_consumers.engines.engine import Answer
from gpu_consumers.engines.error_answers import error_answer, stream_refused

BYTES_PER_TOKEN = 4
OUTPUT_TOKENS_DEFAULT = 64
OUTPUT_TOKENS_MAX = 4096
"""Longest reply; a larger `max_tokens` ends with `stop` here."""
DIMENSIONS_DEFAULT = 8
DIMENSIONS_MAX = 4096
INPUTS_MAX = 2048
"""Inputs in one embeddings body, as with OpenAI."""

_HEAD_CHARS = len("Simulated 00000000. ")
_SENTENCE = "No model has read the prompt. "

Input = str | list[str | int | list[int]]


class _Message(msgspec.Struct):
    role: str
    content: str | list[msgspec.Raw] | None = None


class _ChatBody(msgspec.Struct):
    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None


class _CompletionBody(msgspec.Struct):
    prompt: Input
    max_tokens: int | None = None
    stream: bool | None = None


class _EmbeddingsBody(msgspec.Struct):
    input: Input
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


_chat_body = msgspec.json.Decoder(_ChatBody)
_completion_body = msgspec.json.Decoder(_CompletionBody)
_embeddings_body = msgspec.json.Decoder(_EmbeddingsBody)


def chat_answer(body: bytes, model: bytes, created_s: int) -> Answer:
    """Answer a chat completion. `model` is a JSON string."""
    try:
        chat = _chat_body.decode(body)
    except (msgspec.DecodeError, RecursionError) as mistake:
        return _bad_body(mistake)
    if chat.stream:
        return stream_refused()
    if not chat.messages:
        return error_answer(400, "`messages` is empty.", param="messages")
    asked = chat.max_completion_tokens
    if asked is None:
        asked = chat.max_tokens
    if asked is not None and asked < 1:
        return error_answer(400, "`max_tokens` must be at least 1.", param="max_tokens")
    output_tokens, tail, finish = _reply(asked)
    digest = zlib.crc32(body)
    input_tokens = len(body) // BYTES_PER_TOKEN
    answer = (
        b'{"id":"chatcmpl-%08x","object":"chat.completion","created":%d,"model":%b,"choices":'
        b'[{"index":0,"message":{"role":"assistant","content":"Simulated %08x. %b","refusal":null},'
        b'"logprobs":null,"finish_reason":"%b"}],"usage":{"prompt_tokens":%d,'
        b'"completion_tokens":%d,"total_tokens":%d}}'
        % (
            digest, created_s, model, digest, tail, finish,
            input_tokens, output_tokens, input_tokens + output_tokens,
        )
    )  # fmt: skip
    return Answer(200, answer, input_tokens, output_tokens)


def completion_answer(body: bytes, model: bytes, created_s: int) -> Answer:
    """Answer a legacy completion, one choice a prompt. `model` is a JSON string."""
    try:
        completion = _completion_body.decode(body)
    except (msgspec.DecodeError, RecursionError) as mistake:
        return _bad_body(mistake)
    if completion.stream:
        return stream_refused()
    if completion.max_tokens is not None and completion.max_tokens < 1:
        return error_answer(400, "`max_tokens` must be at least 1.", param="max_tokens")
    prompts = _inputs(completion.prompt)
    if isinstance(prompts, str):
        return error_answer(400, prompts, param="prompt")
    tokens, tail, finish = _reply(completion.max_tokens)
    digest = zlib.crc32(body)
    choices = b",".join(
        b'{"index":%d,"text":"Simulated %08x. %b","logprobs":null,"finish_reason":"%b"}'
        % (index, digest, tail, finish)
        for index in range(len(prompts))
    )
    input_tokens = len(body) // BYTES_PER_TOKEN
    output_tokens = tokens * len(prompts)
    answer = (
        b'{"id":"cmpl-%08x","object":"text_completion","created":%d,"model":%b,"choices":[%b],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
        % (
            digest, created_s, model, choices,
            input_tokens, output_tokens, input_tokens + output_tokens,
        )
    )  # fmt: skip
    return Answer(200, answer, input_tokens, output_tokens)


def embeddings_answer(body: bytes, model: bytes, created_s: int) -> Answer:
    """Answer an embeddings call, one unit vector an input. `model` is a JSON string."""
    del created_s  # OpenAI's embeddings carry no time
    try:
        request = _embeddings_body.decode(body)
    except (msgspec.DecodeError, RecursionError) as mistake:
        return _bad_body(mistake)
    inputs = _inputs(request.input)
    if isinstance(inputs, str):
        return error_answer(400, inputs, param="input")
    dimensions = DIMENSIONS_DEFAULT if request.dimensions is None else request.dimensions
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        return error_answer(400, f"`dimensions` must be 1 to {DIMENSIONS_MAX}.", param="dimensions")
    vectors = [unit_vector(one, dimensions) for one in inputs]
    input_tokens = len(body) // BYTES_PER_TOKEN
    content = {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": index,
                "embedding": list(vector)
                if request.encoding_format == "float"
                else _packed(vector),
            }
            for index, vector in enumerate(vectors)
        ],
        "model": msgspec.Raw(model),
        "usage": {"prompt_tokens": input_tokens, "total_tokens": input_tokens},
    }
    return Answer(200, msgspec.json.encode(content), input_tokens)


def unit_vector(text: str | list[int], dimensions: int) -> tuple[float, ...]:
    """Return a float32-exact vector of length 1 that depends on the input's hash alone."""
    digest = hashlib.shake_128(msgspec.json.encode(text)).digest(2 * dimensions)
    # Odd numbers only: no vector can be all zeros.
    raw = [2 * number + 1 for number in struct.unpack(f"<{dimensions}h", digest)]
    length = math.hypot(*raw)
    narrow = struct.pack(f"<{dimensions}f", *(number / length for number in raw))
    return struct.unpack(f"<{dimensions}f", narrow)


def _packed(vector: tuple[float, ...]) -> str:
    """Little-endian float32, as the official client decodes it."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


@lru_cache(maxsize=1024)
def _reply(asked: int | None) -> tuple[int, bytes, bytes]:
    """Return the output tokens, the content after its head, and the finish reason."""
    tokens = OUTPUT_TOKENS_DEFAULT if asked is None else min(asked, OUTPUT_TOKENS_MAX)
    tail_chars = max(0, tokens * BYTES_PER_TOKEN - _HEAD_CHARS)
    tail = (_SENTENCE * (tail_chars // len(_SENTENCE) + 1))[:tail_chars].encode()
    return tokens, tail, b"length" if asked == tokens else b"stop"


def _inputs(value: Input) -> list[str | list[int]] | str:
    """Return the separate inputs, or the sentence that says what is wrong with them."""
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


def _bad_body(mistake: Exception) -> Answer:
    """Say what is wrong; msgspec's messages name types and paths, never values."""
    if isinstance(mistake, RecursionError):
        return error_answer(400, "The body is nested too deeply.")
    return error_answer(400, f"The body is not valid: {mistake}")
