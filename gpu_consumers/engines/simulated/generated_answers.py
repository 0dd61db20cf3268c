"""Deterministic answers in the shape of the OpenAI API; each says that it is simulated.

One token is four bytes: of the body for input, of the content for output. Pure functions.
"""

import hashlib
import math
import struct
from base64 import b64encode

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer, stream_unsupported_answer
from gpu_consumers.engines.simulated.reply_plans import (
    OUTPUT_TOKENS_DEFAULT,
    ChatBody,
    EmbeddingsBody,
    GeneratedReply,
    ReplyPlan,
    decode_body,
    digest_of,
    input_tokens_of,
    parse_chat,
    plan_completion,
    plan_parsed_chat,
    reply_layout,
)
from gpu_consumers.engines.simulated.shown_model import ShownModel

_embeddings_body = msgspec.json.Decoder(EmbeddingsBody)

DIMENSIONS_DEFAULT = 8
DIMENSIONS_MAX = 4096

_USAGE = b'{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}'
_TEXT_ANSWER = (
    b'{"id":"%b-%08x","object":"%b","created":%d,"model":%b,"choices":[%b],"usage":' + _USAGE + b"}"
)
_PLAIN_CHAT = (
    b'{"id":"chatcmpl-%08x","object":"chat.completion","created":%d,"model":%b,"choices":['
    b'{"index":0,"message":{"role":"assistant","content":"Simulated %08x. %b","refusal":null},'
    b'"logprobs":null,"finish_reason":"%b"}],"usage":' + _USAGE + b"}"
)
"""Both templates combined for one plain reply, which nearly every bulk item requests."""


def chat_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Answer a chat completion."""
    chat = parse_chat(body)
    if isinstance(chat, EngineAnswer):
        return chat
    model = shown.of_name(chat.model)
    if chat.is_plain:
        return _plain_chat_answer(chat, body, model, created_s)
    plan = plan_parsed_chat(chat, body)
    if isinstance(plan, EngineAnswer):
        return plan
    if plan.stream:
        return stream_unsupported_answer()
    choices = b",".join(map(_chat_choice, range(len(plan.choices)), plan.choices))
    return _text_answer(b"chatcmpl", b"chat.completion", choices, plan, model, created_s)


def _plain_chat_answer(chat: ChatBody, body: bytes, model: bytes, created_s: int) -> EngineAnswer:
    requested, digest, inputs = chat.requested_tokens, digest_of(body), input_tokens_of(body)
    outputs, tail, finish = (
        reply_layout(OUTPUT_TOKENS_DEFAULT, True)
        if requested is None
        else reply_layout(requested, False)
    )
    usage = (inputs, outputs, inputs + outputs)
    return EngineAnswer(
        200, _PLAIN_CHAT % (digest, created_s, model, digest, tail, finish, *usage), inputs, outputs
    )


def completion_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Answer a legacy completion, with `n` choices per prompt."""
    plan = plan_completion(body)
    if isinstance(plan, EngineAnswer):
        return plan
    if plan.stream:
        return stream_unsupported_answer()
    choices = b",".join(
        b'{"index":%d,"text":"%b","logprobs":null,"finish_reason":"%b"}'
        % (index, choice.text, choice.finish)
        for index, choice in enumerate(plan.choices)
    )
    return _text_answer(b"cmpl", b"text_completion", choices, plan, shown.of_body(body), created_s)


def embeddings_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Answer an embeddings call, with one unit vector per input."""
    del created_s  # OpenAI's embeddings have no time
    request = decode_body(_embeddings_body.decode, body)
    if isinstance(request, EngineAnswer):
        return request
    inputs = request.inputs()
    if isinstance(inputs, str):
        return error_answer(400, inputs, param="input")
    dimensions = DIMENSIONS_DEFAULT if request.dimensions is None else request.dimensions
    if not 1 <= dimensions <= DIMENSIONS_MAX:
        return error_answer(400, f"`dimensions` must be 1 to {DIMENSIONS_MAX}.", param="dimensions")
    vectors = [unit_vector(one, dimensions) for one in inputs]
    input_tokens = input_tokens_of(body)
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
        "model": msgspec.Raw(shown.of_body(body)),
        "usage": {"prompt_tokens": input_tokens, "total_tokens": input_tokens},
    }
    return EngineAnswer(200, msgspec.json.encode(content), input_tokens)


def usage_json(input_tokens: int, output_tokens: int) -> bytes:
    """Return the field `usage` of text endpoints."""
    return _USAGE % (input_tokens, output_tokens, input_tokens + output_tokens)


def unit_vector(text: str | list[int], dimensions: int) -> tuple[float, ...]:
    """Return a float32-exact unit vector that depends on the input's hash only."""
    digest = hashlib.shake_128(msgspec.json.encode(text)).digest(2 * dimensions)
    # Odd numbers only: no vector can be all zeros.
    raw = [2 * number + 1 for number in struct.unpack(f"<{dimensions}h", digest)]
    length = math.hypot(*raw)
    narrow = struct.pack(f"<{dimensions}f", *(number / length for number in raw))
    return struct.unpack(f"<{dimensions}f", narrow)


def _chat_choice(index: int, choice: GeneratedReply) -> bytes:
    return (
        b'{"index":%d,"message":{"role":"assistant","content":"%b","refusal":null},'
        b'"logprobs":null,"finish_reason":"%b"}' % (index, choice.text, choice.finish)
    )


def _text_answer(
    prefix: bytes, kind: bytes, choices: bytes, plan: ReplyPlan, model: bytes, created_s: int
) -> EngineAnswer:
    inputs, outputs = plan.input_tokens, plan.output_tokens
    named = (prefix, plan.digest, kind, created_s, model)
    body = _TEXT_ANSWER % (*named, choices, inputs, outputs, inputs + outputs)
    return EngineAnswer(200, body, inputs, outputs)


def _packed(vector: tuple[float, ...]) -> str:
    """Return base64 of little-endian float32, as the official client decodes it."""
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
