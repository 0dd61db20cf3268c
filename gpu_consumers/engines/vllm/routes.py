"""The endpoints that the loaded model supports, with vLLM's own models of their bodies."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.pooling.classify.protocol import (
    ClassificationCompletionRequest,
    ClassificationRequest,
)
from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest, EmbeddingRequest
from vllm.entrypoints.pooling.scoring.io_processor import JinaRankingIOProcessorMixin
from vllm.entrypoints.pooling.scoring.protocol import RerankRequest, ScoreRequest
from vllm.renderers.inputs.preprocess import extract_prompt_len

from gpu_consumers.engines.vllm.vllm_answers import EmbeddingsResponse


@dataclass(frozen=True, slots=True)
class Route:
    """How one endpoint is served."""

    request: TypeAdapter[Any]  # vLLM's own model of the body
    handle: Callable[[Any], Awaitable[Any]]
    plain: TypeAdapter[Any] | None = None  # the same of a body whose `input` holds no messages
    is_split: bool = True  # whether slices of its inputs have the same answers


def routes_of_model(state: SimpleNamespace, tasks: tuple[str, ...]) -> dict[str, Route]:
    """Return the routes of the tasks that the loaded model supports."""
    routes: dict[str, Route] = {}
    if "generate" in tasks:
        chat, completion = state.openai_serving_chat, state.openai_serving_completion
        routes["/v1/chat/completions"] = Route(
            TypeAdapter(ChatCompletionRequest), chat.create_chat_completion
        )
        routes["/v1/completions"] = Route(
            TypeAdapter(CompletionRequest), completion.create_completion
        )
    if "embed" in tasks:
        state.serving_embedding.json_response_cls = EmbeddingsResponse
        routes["/v1/embeddings"] = Route(
            TypeAdapter(EmbeddingRequest),
            state.serving_embedding,
            TypeAdapter(EmbeddingCompletionRequest),
        )
    if getattr(state, "serving_scores", None) is not None:
        scores = state.serving_scores
        _report_query_tokens(scores)
        is_split = not isinstance(scores.io_processor, JinaRankingIOProcessorMixin)  # ranks a list
        routes["/v1/score"] = Route(TypeAdapter(ScoreRequest), scores, is_split=is_split)
        routes["/v1/rerank"] = Route(TypeAdapter(RerankRequest), scores, is_split=is_split)
    if getattr(state, "serving_classification", None) is not None:
        routes["/v1/classify"] = Route(
            TypeAdapter(ClassificationRequest),
            state.serving_classification,
            TypeAdapter(ClassificationCompletionRequest),
        )
    return routes


def _report_query_tokens(scores: Any) -> None:
    """Let the responses of vLLM's scores carry the tokens of a query that all documents share.

    A model that embeds both texts runs such a query once a body, and so once a slice; others run it
    with each document.
    """
    build = scores._build_response  # noqa: SLF001 (no other place knows the tokens)

    def build_response(context: Any) -> Any:
        response = build(context)
        if context.n_queries == 1:
            query = context.engine_inputs[0]["prompts"]
            response.query_tokens = extract_prompt_len(scores.model_config, query)
        return response

    scores._build_response = build_response  # noqa: SLF001
