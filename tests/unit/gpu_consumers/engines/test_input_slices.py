"""Goal: a body of many inputs is answered as if it had run whole."""

import json
from typing import Any

import pytest

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer
from gpu_consumers.engines.vllm.input_slices import (
    SLICE_S,
    InputSlices,
    SlicedAnswer,
    SliceLimits,
    SlicePace,
    with_short_input,
)

EMBEDDINGS, SCORE, RERANK = "/v1/embeddings", "/v1/score", "/v1/rerank"


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps({"model": "m", **body}).encode()


def split_inputs(
    endpoint: str, body: bytes, inputs_max: int, tokens_max: int = 10_000, context_tokens: int = 512
) -> list[bytes]:
    pace = SlicePace(tokens_max, is_constant=True)
    whole = InputSlices(endpoint, body, SliceLimits(inputs_max, context_tokens), pace)
    return list(iter(whole.next_body, None))


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


@pytest.mark.parametrize(
    ("endpoint", "body", "counts"),
    [
        (EMBEDDINGS, {"input": ["a" * 98, "b" * 98, "c" * 198]}, [2, 1]),
        (EMBEDDINGS, {"input": ["a" * 5_000] * 4}, [1, 1, 1, 1]),
        (EMBEDDINGS, {"input": ["a" * 500] * 2, "unknown": [1] * 20}, [1, 1]),
        (EMBEDDINGS, {"input": [[1] * 150, [2] * 50, [3] * 150, [4] * 40]}, [2, 2]),
        (EMBEDDINGS, {"input": ["a"] * 3, "pad_prompt_tokens": 99, "user": "a" * 200}, [1, 1, 1]),
        (SCORE, {"text_1": "q" * 98, "text_2": ["a" * 48, "b" * 48, "c" * 48]}, [1, 1, 1]),
        (SCORE, {"text_1": ["q" * 98] * 3, "text_2": ["a"] * 3}, [1, 1, 1]),
        (SCORE, {"data_1": "q", "data_2": [{"content": []}] * 9, "user": "u" * 99}, [1] * 9),
        (RERANK, {"query": "q", "documents": ["a" * 48] * 8}, [3, 3, 2]),
    ],
)
def test_slices_are_bounded_in_tokens(
    endpoint: str, body: dict[str, Any], counts: list[int]
) -> None:
    parts = [json.loads(part) for part in split_inputs(endpoint, encoded(body), 100, 200, 200)]
    field = next(name for name in ("input", "text_2", "data_2", "documents") if name in body)
    assert [len(part[field]) for part in parts] == counts
    assert [one for part in parts for one in part[field]] == body[field]


def test_short_bodies_stay_whole() -> None:
    body = encoded({"input": ["a", "b"]})
    assert split_inputs(EMBEDDINGS, body, 100, len(body)) == [body]
    assert split_inputs(EMBEDDINGS, body, 100, len(body) - 1) == [body]
    assert len(split_inputs(EMBEDDINGS, body, 1, len(body))) == 2


def test_the_pace_follows_the_rate_of_the_engine() -> None:
    pace = SlicePace(100_000)
    first = pace.tokens_max
    for _ in range(20):  # 50,000 tokens a second
        pace.record(pace.tokens_max, pace.tokens_max / 50_000)
    assert pace.tokens_max == pytest.approx(50_000 * SLICE_S, rel=0.01)
    assert pace.tokens_max > first
    pace.record(pace.tokens_max, 5 * SLICE_S)
    assert pace.tokens_max == pytest.approx(10_000 * SLICE_S, rel=0.01)


def test_the_pace_has_bounds() -> None:
    pace = SlicePace(4_000)
    pace.record(1, 0.01)  # a slice of few tokens says little
    assert pace.tokens_max == 1_024
    for _ in range(20):
        pace.record(10_000, 0.001)
    assert pace.tokens_max == 4_000
    pace.record(1, 60.0)
    assert pace.tokens_max == 1_024
    pace.record(10_000, 0.001)
    assert pace.tokens_max == 2_048
    assert SlicePace(500).tokens_max == 500


def test_only_slices_of_split_bodies_set_the_pace() -> None:
    pace = SlicePace(4_000)
    whole = InputSlices(EMBEDDINGS, encoded({"input": "a"}), SliceLimits(10, 512), pace)
    assert whole.next_body() is not None
    whole.record(10_000, 0.001)
    assert pace.tokens_max == 1_024


@pytest.mark.parametrize(
    ("body", "is_shared"),
    [
        ({"text_1": "q", "text_2": ["a", "b", "c"]}, True),
        ({"text_1": ["q"], "text_2": ["a", "b", "c"]}, True),
        ({"text_1": ["p", "q", "r"], "text_2": ["a", "b", "c"]}, False),
    ],
)
def test_a_query_of_all_documents_is_shared(body: dict[str, Any], is_shared: bool) -> None:
    pace = SlicePace(4_000)
    assert (
        InputSlices(SCORE, encoded(body), SliceLimits(2, 512), pace).has_shared_query is is_shared
    )


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


def test_a_shared_query_is_counted_once() -> None:
    sliced = SlicedAnswer(SCORE, b"{}", 10_000)
    rows = [{"index": 0, "score": 0.5}] * 5
    for _ in range(3):
        assert sliced.add(answer(rows), query_tokens=2) is None
    assert sliced.join().input_tokens == 15 - 2 * 2


def test_the_only_answer_is_not_changed() -> None:
    sliced = SlicedAnswer(EMBEDDINGS, b"{}", 10_000)
    whole = answer([{"index": 0, "embedding": [0.5]}])
    assert sliced.add(whole, query_tokens=1) is None
    assert sliced.join() is whole


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
