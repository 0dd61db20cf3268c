"""Goal: prompt and output of every body are estimated as vLLM reads it, and fit a record."""

import tracemalloc

import pytest

from core.bodies.token_estimates import (
    CONTEXT_TOKENS_MAX,
    RequestedTokens,
    TokenEstimate,
    requested_tokens,
)
from topics.records.codec import encode
from topics.records.records import Item

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"


@pytest.mark.parametrize(
    ("endpoint", "body", "prompt", "sequences", "limit"),
    [
        # A chat: the newer field counts, 0 and null differ, and without a limit the context rules.
        (CHAT, b'{"max_tokens": 7}', 4, 1, 7),
        (CHAT, b'{"max_tokens":7,"n":3}', 5, 3, 7),
        (CHAT, b'{"max_tokens":7,"max_completion_tokens":5}', 10, 1, 5),
        (CHAT, b'{"max_tokens":7,"max_completion_tokens":0}', 10, 1, 0),
        (CHAT, b'{"max_tokens":7,"max_completion_tokens":null}', 11, 1, 7),
        (CHAT, b'{"max_output_tokens":7}', 5, 1, None),
        (CHAT, b"{}", 0, 1, None),
        (CHAT, b'{"max_tokens":null,"n":null}', 7, 1, None),
        (CHAT, b'{"max_tokens":"7"}', 4, 1, 7),
        (CHAT, b'{"max_tokens":-70}', 4, 1, 0),
        (CHAT, b'{"max_tokens":[7]}', 4, 1, None),
        (CHAT, b'{"prompt":["a","b"],"max_tokens":7}', 8, 1, 7),
        (CHAT, b"no json", 1, 1, None),
        # A completion: 16 tokens by default; prompts, `n` and `best_of` multiply.
        (TEXT, b'{"prompt":"a"}', 3, 1, 16),
        (TEXT, b'{"prompt":"a","max_tokens":null}', 8, 1, 16),
        (TEXT, b'{"prompt":"a","max_completion_tokens":9}', 10, 1, 16),
        (TEXT, b'{"prompt":"a","max_tokens":7}', 7, 1, 7),
        (TEXT, b'{"prompt":"a","max_tokens":0,"echo":true}', 10, 1, 0),
        (TEXT, b'{"prompt":"a","n":2,"best_of":5}', 8, 5, 16),
        (TEXT, b'{"prompt":["a","b"],"n":3,"max_tokens":7}', 10, 6, 7),
        (TEXT, b'{"prompt":[],"max_tokens":7}', 7, 1, 7),
        (TEXT, b'{"prompt":{},"max_tokens":7}', 7, 1, 7),
        (TEXT, b'{"prompt":null,"max_tokens":7}', 7, 1, 7),
        (TEXT, b'{"prompt":"[[1],[2]]","max_tokens":7}', 9, 1, 7),
        (TEXT, b'{"prompt": [\n"a", "b" ],"max_tokens":7}', 9, 2, 7),
        (TEXT, b'{"prompt":["a[,]\\"b","\\\\",""],"max_tokens":7}', 11, 3, 7),
        # Tokens are counted, not their digits.
        (TEXT, b'{"prompt":[128000,99999,7],"max_tokens":7}', 3, 1, 7),
        (TEXT, b'{"prompt":[-1,2],"max_tokens":7}', 2, 1, 7),
        (TEXT, b'{"prompt": [ 1, 2 ],"max_tokens":7}', 2, 1, 7),
        (TEXT, b'{"prompt":[[1],[2,3]],"max_tokens":7}', 3, 2, 7),
        (TEXT, b'{"prompt": [ [1], [2] ],"max_tokens":7}', 2, 2, 7),
        # Other endpoints generate nothing, whatever their fields say.
        (EMBED, b'{"max_tokens": 7}', 4, 0, None),
        (EMBED, b'{"input":["a","b"],"n":3}', 6, 0, None),
        (EMBED, b'{"input":[128000,99999,7]}', 3, 0, None),
        (EMBED, b'{"input":[[128000],[99999,7]]}', 3, 0, None),
        ("/v1/rerank", b'{"query":"a","documents":["b","c"]}', 8, 0, None),
        ("/v1/score", b'{"text_1":"a","text_2":["b"]}', 7, 0, None),
        ("/v1/classify", b'{"input":"a[1,2"}', 4, 0, None),
        (EMBED, b"no json [", 2, 0, None),
    ],
)
def test_each_endpoint_reads_its_own_fields(
    endpoint: str, body: bytes, prompt: int, sequences: int, limit: int | None
) -> None:
    assert requested_tokens(endpoint, body) == RequestedTokens(prompt, sequences, limit)


@pytest.mark.parametrize(
    ("requested", "context", "bound", "expected"),
    [
        (RequestedTokens(100, 1, 50), 8_192, 50, 50),
        (RequestedTokens(100, 1, 900), 8_192, 900, 256),
        (RequestedTokens(100, 3, 50), 8_192, 150, 150),
        (RequestedTokens(100, 3, 900), 8_192, 2_700, 768),
        (RequestedTokens(100, 1, None), 131_072, 130_972, 256),
        (RequestedTokens(100, 1, 900), 600, 500, 256),  # what the context leaves
        (RequestedTokens(700, 1, None), 600, 0, 0),
        (RequestedTokens(100, 0, None), 8_192, 0, 0),
        (RequestedTokens(100, 1, 0), 8_192, 0, 0),
    ],
)
def test_the_output_has_a_bound_and_an_expectation(
    requested: RequestedTokens, context: int, bound: int, expected: int
) -> None:
    estimate = requested.estimate(256.0, context_tokens=context)
    assert estimate == TokenEstimate(requested.prompt, bound, expected)


def test_a_giant_limit_still_fits_a_record() -> None:
    body = b'{"prompt":["a","b"],"n":%s,"max_tokens":%s}' % (b"9" * 18, b"9" * 18)
    requested = requested_tokens(TEXT, body)
    assert requested.estimate(1e9).output_bound == CONTEXT_TOKENS_MAX
    output = requested.expected_output(1e9)
    assert requested.total_with(output) == CONTEXT_TOKENS_MAX
    encode(Item(0, "a", body, requested.total_with(output), output_token_count=output))


def test_token_ids_are_counted_without_decoding() -> None:
    body = b'{"prompt":[%s],"max_tokens":7}' % b",".join([b"1"] * 200_000)
    tracemalloc.start()
    try:
        requested_tokens(TEXT, body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(body) * 1.5


@pytest.mark.parametrize("sequences", [0, 1, 3])
@pytest.mark.parametrize("limit", [None, 0, 5, 20])
@pytest.mark.parametrize("expected", [0.0, 6.6, 256.0])
def test_the_expected_output_is_that_of_the_estimate(
    sequences: int, limit: int | None, expected: float
) -> None:
    requested = RequestedTokens(7, sequences, limit)
    estimate = requested.estimate(expected)
    output = requested.expected_output(expected)
    assert output == estimate.output_expected
    assert requested.total_with(output) == estimate.expected_total == 7 + output
