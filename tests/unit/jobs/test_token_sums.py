"""Goal: the estimated tokens of a file are about those that emission estimates, for any body."""

import json
from typing import Any

import pytest

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.bodies.token_estimates import CONTEXT_TOKENS_MAX, requested_tokens
from jobs.input.token_sums import Tokens, TokenSums, default_tokens, item_tokens

CHAT, COMPLETION, EMBEDDING = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
MESSAGES = [{"role": "user", "content": "Why is the sky blue? " * 20}]


def line_of(endpoint: str, body: dict[str, Any]) -> bytes:
    value = {"custom_id": "a", "method": "POST", "url": endpoint, "body": body}
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, {"messages": MESSAGES}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 20}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 900, "max_completion_tokens": 30, "n": 3}),
        (CHAT, {"messages": MESSAGES, "max_tokens": 100_000}),
        (CHAT, {"messages": MESSAGES, "n": 10**30}),
        (COMPLETION, {"prompt": "once" * 50}),
        (COMPLETION, {"prompt": ["once" * 20, "twice" * 20], "max_tokens": 40, "best_of": 2}),
        (COMPLETION, {"prompt": [1, 22, 333], "max_tokens": 40}),
        (COMPLETION, {"prompt": [[1, 22], [333]], "n": 2}),
        (EMBEDDING, {"input": "some text " * 30}),
        (EMBEDDING, {"input": ["some text " * 30] * 3}),
        (EMBEDDING, {"input": list(range(100))}),
    ],
)
def test_an_item_has_about_the_tokens_that_emission_estimates(
    endpoint: str, body: dict[str, Any]
) -> None:
    requested = requested_tokens(endpoint, json.dumps(body).encode())
    prompt, output = item_tokens(endpoint, len(line_of(endpoint, body)), body)
    assert output == requested.expected_output(OUTPUT_TOKENS_PRIOR)
    assert abs(prompt - requested.prompt) <= 10  # the text around the body


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"max_tokens": "many", "n": "x"},
        {"max_tokens": -5, "n": -1, "best_of": 1.5},
        {"max_tokens": True, "n": None, "prompt": None, "input": {}},
        {"max_tokens": 10**400, "n": 10**400, "prompt": [], "input": [[], "x", 7]},
        {"prompt": [[1], "x"], "input": [1, "x"]},
    ],
)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETION, EMBEDDING, "/v1/rerank"])
def test_no_field_of_a_client_makes_an_estimate_fail_or_exceed_a_record(
    endpoint: str, body: dict[str, Any]
) -> None:
    for line_bytes in (0, 100, 10**12):
        prompt, output = item_tokens(endpoint, line_bytes, body)
        assert 0 <= prompt <= CONTEXT_TOKENS_MAX
        assert 0 <= output <= CONTEXT_TOKENS_MAX


def test_a_file_has_the_sum_of_its_items() -> None:
    sums = TokenSums(CHAT)
    assert sums.total == Tokens(0, 0)
    for limit in (10, 20):
        sums.add(464, {"messages": MESSAGES, "max_tokens": limit})
    assert sums.total == Tokens(200, 30)


def test_unknown_sums_follow_from_bytes_and_the_prior() -> None:
    assert default_tokens(CHAT, 10, 400) == Tokens(1000, 2560)
    assert default_tokens(EMBEDDING, 10, 400) == Tokens(1000, 0)
