"""vLLM's responses as answers."""

from http import HTTPStatus
from typing import Any

import msgspec
from vllm.entrypoints.serve.engine.protocol import ErrorResponse

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.engine_failures import check_vectors, refusal_answer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.response_fields import answer_with_usage


class EmbeddingsResponse:
    """Replaces the web framework's response class in the embeddings route.

    Keeps the usage, and encodes hundreds of floats faster than the standard library's JSON.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        """Encode `content`. Raises NotFiniteError for vectors that JSON cannot represent."""
        check_vectors(content["data"])
        self.body = msgspec.json.encode(content)
        self.input_tokens: int = content["usage"]["prompt_tokens"]


def answer_from_response(response: Any) -> EngineAnswer:
    """Return the response of a serving object as an answer."""
    if isinstance(response, ErrorResponse):
        error = response.error
        return refusal_answer(int(error.code), error.message, error.param)
    if isinstance(response, EmbeddingsResponse):
        return EngineAnswer(HTTPStatus.OK, response.body, response.input_tokens)
    if getattr(response, "media_type", None) == "application/json":  # scores and classes
        answer = answer_with_usage(response.status_code, response.body)
        assert answer is not None, "vLLM wrote it"
        return answer
    if not hasattr(response, "usage"):  # a binary response
        message = "Only `float` and `base64` embeddings fit an answer."
        return error_answer(HTTPStatus.BAD_REQUEST, message, param="encoding_format")
    return answer_of_body(response, response.model_dump_json().encode())


def answer_of_body(response: Any, body: bytes) -> EngineAnswer:
    """Return the answer with this body and the usage of a response."""
    usage = response.usage
    input_details, output_details = usage.prompt_tokens_details, usage.completion_tokens_details
    return EngineAnswer(
        HTTPStatus.OK,
        body,
        usage.prompt_tokens,
        usage.completion_tokens or 0,
        (input_details.cached_tokens or 0) if input_details else 0,
        (output_details.reasoning_tokens or 0) if output_details else 0,
    )
