"""Goal: streaming bodies are recognised and get usage requested, with no other change."""

import pytest

from gpu_consumers.engines.stream_events import (
    StreamOptions,
    choices_per_prompt,
    requested_stream_options,
    with_usage_requested,
)


@pytest.mark.parametrize(
    ("body", "options"),
    [
        (b'{"stream":true}', StreamOptions()),
        (b'{"stream": true, "stream_options": null}', StreamOptions()),
        (b'{"stream":true,"stream_options":7}', StreamOptions()),
        (
            b'{"stream":true,"stream_options":{"include_usage":true}}',
            StreamOptions(include_usage=True),
        ),
        (b'{"stream":false}', None),
        (b'{"stream":"true"}', StreamOptions()),
        (b'{"stream":1}', StreamOptions()),
        (b'{"stream":0}', None),
        (b'{"str\\u0065am":true}', StreamOptions()),
        (b'{"a":"\\u0065"}', None),
        (b'{"stream":"maybe"}', None),
        (b'{"messages":[{"content":"\\"stream\\": true"}]}', None),
        (b'{"stream":true', None),
        (b'{"stream":' + b"[" * 100_000, None),
        (b"{}", None),
    ],
)
def test_streaming_bodies_are_recognised(body: bytes, options: StreamOptions | None) -> None:
    assert requested_stream_options(body) == options


def test_requesting_usage_changes_no_other_field() -> None:
    body = b'{"a": 1e2, "stream":true,"stream_options":{"x":[ 1],"include_usage":false}}'
    asked = with_usage_requested(body)
    assert b"1e2" in asked
    assert b'{"x":[ 1],"include_usage":true}' in asked
    refused = b'{"stream":true,"stream_options":7}'
    assert with_usage_requested(refused) == refused


@pytest.mark.parametrize(
    ("n", "count"),
    [("1", 1), ("3", 3), ('"3"', 3), ("null", 1), ("0", 1), ("-2", 1), ("[3]", 1), ('"x"', 1)],
)
def test_choices_per_prompt(n: str, count: int) -> None:
    assert choices_per_prompt(b'{"stream":true,"n":%b}' % n.encode()) == count
    assert choices_per_prompt(b'{"stream":true}') == 1
