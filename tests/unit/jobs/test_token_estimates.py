"""Goal: every body has an estimate that fits a record."""

import tracemalloc

import msgspec
import pytest

from jobs.input.token_estimates import token_count
from topics.records.codec import encode
from topics.records.records import Item

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        ("/v1/embeddings", b'{"max_tokens": 7}', 4),
        (CHAT, b'{"max_tokens": 7}', 4 + 7),
        (CHAT, b'{"max_tokens":7,"n":3}', 5 + 21),
        (CHAT, b'{"max_tokens":7,"max_completion_tokens":5}', 10 + 5),
        (CHAT, b"{}", 256),
        (CHAT, b'{"max_tokens":"7"}', 4 + 256),
        (CHAT, b'{"max_tokens":-70}', 4),
        (TEXT, b'{"prompt":"a","max_tokens":7}', 7 + 7),
        (TEXT, b'{"prompt":["a","b"],"n":3,"max_tokens":7}', 10 + 42),
        (TEXT, b'{"prompt":[1,2,3],"max_tokens":7}', 8 + 7),
        (TEXT, b'{"prompt":[[1],[2,3]],"max_tokens":7}', 9 + 14),
        (TEXT, b'{"prompt":[],"max_tokens":7}', 7 + 7),
        (TEXT, b'{"prompt":{},"max_tokens":7}', 7 + 7),
        (TEXT, b'{"prompt":null,"max_tokens":7}', 7 + 7),
        (TEXT, b'{"prompt":"[[1],[2]]","max_tokens":7}', 9 + 7),
        (TEXT, b'{"prompt":[-1,2],"max_tokens":7}', 8 + 7),
        (TEXT, b'{"prompt": [ 1, 2 ],"max_tokens":7}', 8 + 7),
        (TEXT, b'{"prompt": [ [1], [2] ],"max_tokens":7}', 9 + 14),
        (TEXT, b'{"prompt": [\n"a", "b" ],"max_tokens":7}', 9 + 14),
        (TEXT, b'{"prompt":[[]],"max_tokens":7}', 7 + 7),
        (TEXT, b'{"prompt":["a[,]\\"b","\\\\",""],"max_tokens":7}', 11 + 21),
    ],
)
def test_prompt_plus_requested_output(endpoint: str, body: bytes, expected: int) -> None:
    assert token_count(endpoint, body, len(body)) == expected
    assert token_count(endpoint, msgspec.Raw(body), len(body)) == expected


def test_a_giant_limit_still_fits_a_record() -> None:
    body = b'{"max_tokens":%s}' % (b"9" * 30)
    encode(Item(0, "a", body, token_count(CHAT, body, len(body))))


def test_token_ids_are_counted_without_decoding() -> None:
    body = b'{"prompt":[%s],"max_tokens":7}' % b",".join([b"1"] * 200_000)
    tracemalloc.start()
    try:
        token_count(TEXT, body, len(body))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < len(body)
