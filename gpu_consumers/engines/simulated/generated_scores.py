"""Scores, rankings and classes of the simulated engine, in the shape of vLLM's.

A number depends on the hash of its texts only. Pure functions.
"""

import zlib

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.simulated.reply_plans import (
    INPUTS_MAX,
    Input,
    decode_body,
    digest_of,
    input_tokens_of,
    split_inputs,
)
from gpu_consumers.engines.simulated.shown_model import ShownModel

_LABELS = ("LABEL_0", "LABEL_1")
_HASHES = 2**32

TextInput = str | list[str]


class _ScoreBody(msgspec.Struct):
    """Two sides under any of the four pairs of names that vLLM accepts."""

    queries: TextInput | None = None
    documents: TextInput | None = None
    items: TextInput | None = None
    data_1: TextInput | None = None
    data_2: TextInput | None = None
    text_1: TextInput | None = None
    text_2: TextInput | None = None

    def sides(self) -> tuple[list[str], list[str]] | None:
        """Return both sides as lists; None if no pair is complete."""
        pairs = (
            (self.queries, self.documents),
            (self.queries, self.items),
            (self.data_1, self.data_2),
            (self.text_1, self.text_2),
        )
        for left, right in pairs:
            if left is not None and right is not None:
                return _listed(left), _listed(right)
        return None


class _RerankBody(msgspec.Struct):
    query: str
    documents: TextInput
    top_n: int = 0


class _ClassifyBody(msgspec.Struct):
    input: Input


_score_body = msgspec.json.Decoder(_ScoreBody)
_rerank_body = msgspec.json.Decoder(_RerankBody)
_classify_body = msgspec.json.Decoder(_ClassifyBody)


def score_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Score pairs: one text with each of the other side, or texts at equal positions."""
    request = decode_body(_score_body.decode, body)
    if isinstance(request, EngineAnswer):
        return request
    sides = request.sides()
    if sides is None:
        return error_answer(400, "Two sides are needed, `queries` and `documents` for example.")
    left, right = sides
    if not left or not right or len(right) > INPUTS_MAX:
        return error_answer(400, f"Each side needs 1 to {INPUTS_MAX} texts.")
    if len(left) not in {1, len(right)}:
        return error_answer(400, "The first side needs one text, or as many as the second.")
    if len(left) == 1:
        left = left * len(right)
    pairs = zip(left, right, strict=True)
    data = [
        {"index": index, "object": "score", "score": similarity(one, other)}
        for index, (one, other) in enumerate(pairs)
    ]
    return _listing(body, shown, {"id": f"score-{digest_of(body):08x}", "created": created_s}, data)


def rerank_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Order documents by their score against the query, best first."""
    del created_s  # a ranking has no time
    request = decode_body(_rerank_body.decode, body)
    if isinstance(request, EngineAnswer):
        return request
    documents = _listed(request.documents)
    if not documents or len(documents) > INPUTS_MAX:
        return error_answer(400, f"1 to {INPUTS_MAX} documents are needed.", param="documents")
    if request.top_n < 0:
        return error_answer(400, "`top_n` must be at least 0.", param="top_n")
    scores = [similarity(request.query, text) for text in documents]
    best_first = sorted(range(len(documents)), key=lambda index: -scores[index])
    results = [
        {
            "index": index,
            "document": {"text": documents[index], "multi_modal": None},
            "relevance_score": scores[index],
        }
        for index in best_first[: request.top_n or None]
    ]
    tokens = input_tokens_of(body)
    content = {
        "id": f"rerank-{digest_of(body):08x}",
        "model": msgspec.Raw(shown.of_body(body)),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": results,
    }
    return EngineAnswer(200, msgspec.json.encode(content), tokens)


def classify_answer(body: bytes, shown: ShownModel, created_s: int) -> EngineAnswer:
    """Assign each input one of two classes."""
    request = decode_body(_classify_body.decode, body)
    if isinstance(request, EngineAnswer):
        return request
    inputs = split_inputs(request.input)
    if isinstance(inputs, str):
        return error_answer(400, inputs, param="input")
    data = []
    for index, one in enumerate(inputs):
        share = zlib.crc32(msgspec.json.encode(one)) / _HASHES
        probabilities = [share, 1 - share]
        label = _LABELS[probabilities.index(max(probabilities))]
        data.append(
            {"index": index, "label": label, "probs": probabilities, "num_classes": len(_LABELS)}
        )
    head = {"id": f"classify-{digest_of(body):08x}", "created": created_s}
    return _listing(body, shown, head, data)


def similarity(left: str, right: str) -> float:
    """Return a score from 0 to below 1."""
    return zlib.crc32(right.encode(), zlib.crc32(left.encode())) / _HASHES


def _listing(
    body: bytes, shown: ShownModel, head: dict[str, object], data: list[dict[str, object]]
) -> EngineAnswer:
    tokens = input_tokens_of(body)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}
    content = head | {
        "object": "list",
        "model": msgspec.Raw(shown.of_body(body)),
        "data": data,
        "usage": usage,
    }
    return EngineAnswer(200, msgspec.json.encode(content), tokens)


def _listed(texts: TextInput) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
