"""Goal: every chunk and answer names the version that wrote it, and nothing else changes."""

import json

import pytest

from gpu_consumers.payloads.fingerprints import stamp_of

CHAT = "/v1/chat/completions"
STAMP = stamp_of(CHAT, "org/m", "7")


@pytest.mark.parametrize(
    "payload",
    [
        {"id": "a", "choices": []},
        {"id": "a", "system_fingerprint": None, "usage": None},
        {"id": "a", "system_fingerprint": 'vllm-"0"', "n": 1},
        {"choices": [{"text": '"system_fingerprint":null,"}'}], "stop": True},
        {"choices": [{"text": "system_fingerprint"}], "n": 1e5},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_the_field_is_set_and_the_rest_is_kept(
    payload: dict[str, object], separators: tuple[str, str]
) -> None:
    written = STAMP(json.dumps(payload, separators=separators).encode())
    assert json.loads(written) == payload | {"system_fingerprint": "org/m@7"}


@pytest.mark.parametrize("payload", [b"{}", b"{ }", b"", b"[]", b"7"])
def test_what_is_no_answer_stays_as_it_is(payload: bytes) -> None:
    assert STAMP(payload) == payload


def test_other_endpoints_have_no_such_field() -> None:
    assert stamp_of("/v1/embeddings", "m", "1")(b'{"a":1}') == b'{"a":1}'
