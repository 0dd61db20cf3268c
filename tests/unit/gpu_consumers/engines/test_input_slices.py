"""Goal: a body of many inputs is answered as if it had run whole."""

import json
from typing import Any

import pytest

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.vllm.input_slices import SlicedAnswer, split_inputs, with_short_input

EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", **body}).encode()


def slices(endpoint: str, body: dict[str, Any], inputs_max: int = 2) -> list[dict[str, Any]]:
    return [json.loads(part) for part in split_inputs(endpoint, encoded(body), inputs_max)]


@pytest.mark.parametrize(
    ("endpoint", "body", "parts"),
    [
        (EMBEDDINGS, {"input": ["a", "b", "c"]}, [{"input": ["a", "b"]}, {"input": ["c"]}]),
        (EMBEDDINGS, {"input": [[1], [2], [3]]}, [{"input": [[1], [2]]}, {"input": [[3]]}]),
        ("/v1/classify", {"input": ["a", "b", "c"]}, [{"input": ["a", "b"]}, {"input": ["c"]}]),
        (
            SCORE,
            {"text_1": "q", "text_2": ["a", "b", "c"]},
            [{"text_1": "q", "text_2": ["a", "b"]}, {"text_1": "q", "text_2": ["c"]}],
        ),
        (
            SCORE,
            {"queries": ["p", "q", "r"], "documents": ["a", "b", "c"]},
            [
                {"queries": ["p", "q"], "documents": ["a", "b"]},
                {"queries": ["r"], "documents": ["c"]},
            ],
        ),
        (
            RERANK,
            {"query": "q", "documents": ["a", "b", "c"], "top_n": 1},
            [
                {"query": "q", "documents": ["a", "b"], "top_n": 0},
                {"query": "q", "documents": ["c"], "top_n": 0},
            ],
        ),
    ],
)
def test_inputs_are_split(endpoint: str, body: dict[str, Any], parts: list[dict[str, Any]]) -> None:
    assert slices(endpoint, body) == [{"model": "m", **part} for part in parts]


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (EMBEDDINGS, {"input": ["a", "b"]}),
        (EMBEDDINGS, {"input": [1, 2, 3]}),
        (EMBEDDINGS, {"input": "a, b, c, d"}),
        (EMBEDDINGS, {"input": [{"role": "user"}] * 3}),
        (EMBEDDINGS, {"messages": [{"role": "user"}] * 3}),
        (EMBEDDINGS, {"input": ["a", 1, "c"]}),
        (SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
        (SCORE, {"text_1": ["a", "b", "c"], "text_2": ["a"]}),
        ("/v1/completions", {"prompt": ["a", "b", "c"]}),
    ],
)
def test_other_bodies_stay_whole(endpoint: str, body: dict[str, Any]) -> None:
    assert split_inputs(endpoint, encoded(body), 2) == [encoded(body)]


def test_what_is_no_json_stays_whole() -> None:
    for body in (b'{"input":[,,,', b"[,,,]", b'{"input":["\xff",1,2,3]}'):
        assert split_inputs(EMBEDDINGS, body, 2) == [body]


def answer(rows: list[dict[str, Any]], field: str = "data") -> EngineAnswer:
    usage = {"prompt_tokens": len(rows), "total_tokens": len(rows), "completion_tokens": 0}
    body = {"id": "x", "object": "list", field: rows, "usage": usage}
    return EngineAnswer(200, json.dumps(body).encode(), len(rows))


def joined(endpoint: str, body: dict[str, Any], *answers: EngineAnswer) -> dict[str, Any]:
    sliced = SlicedAnswer(endpoint, encoded(body), 10_000)
    assert [sliced.add(one) for one in answers] == [None] * len(answers)
    whole = sliced.join()
    found: dict[str, Any] = json.loads(whole.body)
    assert whole.input_tokens == found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"]
    return found


def test_rows_are_joined_in_order() -> None:
    first = answer([{"index": 0, "embedding": [0.5]}, {"index": 1, "embedding": "AA=="}])
    found = joined(EMBEDDINGS, {}, first, answer([{"index": 0, "embedding": [2.0]}]))
    assert [row["index"] for row in found["data"]] == [0, 1, 2]
    assert [row["embedding"] for row in found["data"]] == [[0.5], "AA==", [2.0]]
    assert (found["id"], found["usage"]["prompt_tokens"]) == ("x", 3)


@pytest.mark.parametrize(("top_n", "order"), [(0, [3, 0, 2, 1]), (2, [3, 0])])
def test_ranks_are_of_all_documents(top_n: int, order: list[int]) -> None:
    first = [{"index": 0, "relevance_score": 0.8}, {"index": 1, "relevance_score": 0.1}]
    second = [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.3}]
    found = joined(RERANK, {"top_n": top_n}, answer(first, "results"), answer(second, "results"))
    assert [row["index"] for row in found["results"]] == order


def test_the_first_error_is_the_answer() -> None:
    sliced = SlicedAnswer(EMBEDDINGS, b"{}", 10_000)
    refused = error_answer(400, "no")
    assert sliced.add(answer([])) is None
    assert sliced.add(refused) is refused


def test_an_answer_is_bounded() -> None:
    sliced = SlicedAnswer(EMBEDDINGS, b"{}", 500)
    rows = [{"index": 0, "embedding": [0.123456] * 30}]
    assert sliced.add(answer(rows)) is None
    too_large = sliced.add(answer(rows))
    assert too_large is not None
    assert (too_large.status_code, b"answer_too_large" in too_large.body) == (400, True)


@pytest.mark.parametrize(
    ("body", "is_plain"),
    [
        (b'{"input":"a"}', True),
        (b'{"input": [ "a", "b"]}', True),
        (b'{"input":[[1,2]]}', True),
        (b'{"input":[1,2]}', True),
        (b'{"input":[{"role":"user"}]}', False),
        (b'{"input":[[{"role":"user"}]]}', False),
        (b'{"messages":[{"content":"a","input":"b"}]}', False),
        (b"{", False),
    ],
)
def test_texts_and_tokens_are_plain_inputs(body: bytes, is_plain: bool) -> None:
    assert (with_short_input(body) is not None) == is_plain


def test_the_other_fields_stay_beside_a_short_input() -> None:
    body = b'{"model":"m","input":[[1,2],[3]],"normalize":true}'
    assert with_short_input(body) == b'{"model":"m","input":"a","normalize":true}'
