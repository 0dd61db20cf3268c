"""Goal: every chunk and answer names its model version, and nothing else changes."""

import json

import pytest

from gpu_consumers.online.call_server import fingerprint_writer

CHAT = "/v1/chat/completions"
STAMP = fingerprint_writer(CHAT, "org/m", "7")


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
def test_the_fingerprint_is_written_and_other_fields_are_kept(
    payload: dict[str, object], separators: tuple[str, str]
) -> None:
    written = STAMP(json.dumps(payload, separators=separators).encode())
    assert json.loads(written) == payload | {"system_fingerprint": "org/m@7"}


@pytest.mark.parametrize("payload", [b"{}", b"{ }", b"", b"[]", b"7"])
def test_other_payloads_are_unchanged(payload: bytes) -> None:
    assert STAMP(payload) == payload


def test_other_endpoints_have_no_fingerprint() -> None:
    assert fingerprint_writer("/v1/embeddings", "m", "1")(b'{"a":1}') == b'{"a":1}'


def test_fingerprint_tells_the_engine_and_one_full_version() -> None:
    digest, engine = "0" * 64, "e" * 64
    stamp = fingerprint_writer(CHAT, f"org/m@{digest[:12]}", digest, engine)
    assert json.loads(stamp(b'{"a":1}'))["system_fingerprint"] == f"org/m@{digest}+{engine[:12]}"
