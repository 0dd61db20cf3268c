"""Goal: stream events pass unchanged; usage and end are known in every case."""

import msgspec
import pytest

from gpu_consumers.engines.engine import EngineAnswer, UsageMeter
from gpu_consumers.engines.stream_events import (
    DONE,
    StreamEvents,
    StreamOptions,
    choices_per_prompt,
    requested_stream_options,
    with_usage_requested,
    without_usage,
)

NOTHING = EngineAnswer(0, b"")
ROLE = b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}'
TOKEN = b'{"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": null}'
USAGE = (
    b'{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":9,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}'
)


def told(*payloads: bytes, **options: bool) -> tuple[StreamEvents, list[bytes]]:
    emitted: list[bytes] = []
    events = StreamEvents(emitted.append, StreamOptions(**options))
    for payload in payloads:
        if not events.on_event(payload):
            break
    return events, emitted


def test_chunks_pass_unchanged_and_unrequested_usage_is_kept() -> None:
    events, emitted = told(ROLE, TOKEN, USAGE, DONE)
    assert emitted == [ROLE, TOKEN]
    answer = events.end()
    assert (answer.status_code, answer.body) == (200, b"")
    assert (answer.input_tokens, answer.output_tokens, answer.cached_tokens) == (5, 9, 4)


def test_requested_usage_is_emitted() -> None:
    assert told(TOKEN, USAGE, DONE, include_usage=True)[1] == [TOKEN, USAGE]


def test_running_usage_is_null_if_requested_at_the_end() -> None:
    chunk = b'{"choices":[{"index":0}],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
    shown = {}
    for wanted in (False, True):
        emitted: list[bytes] = []
        options = StreamOptions(include_usage=wanted)
        StreamEvents(emitted.append, options, strips_usage=True).on_event(chunk)
        (shown[wanted],) = emitted
    assert shown[False] == b'{"choices":[{"index":0}]}'
    assert shown[True] == b'{"choices":[{"index":0}],"usage":null}'


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        (b'"token_ids":[5,6,7]', 3),
        (b'"token_ids":null', 1),
        (b'"token_ids":"x"', 1),
        (b'"logprobs":{"content":[{"token":"a"},{"token":"b"}]}', 2),
        (b'"logprobs":{"tokens":["a","b"],"token_logprobs":[0,0]}', 2),
        (b'"logprobs":7', 1),
    ],
)
def test_stream_without_usage_is_counted_by_named_tokens(fields: bytes, tokens: int) -> None:
    chunk = b'{"choices":[{"index":0,"delta":{"content":"ab"},%b}]}' % fields
    assert told(ROLE, chunk, chunk, DONE)[0].end().output_tokens == 2 * tokens


def test_meter_reports_emitted_tokens() -> None:
    meter, emitted = UsageMeter(), list[bytes]()
    events = StreamEvents(emitted.append, StreamOptions(), meter, choices_per_prompt=2)
    assert meter.with_usage(NOTHING) == NOTHING
    chunk = b'{"choices":[{"index":%d}],"usage":{"prompt_tokens":5,"completion_tokens":%d}}'
    events.on_event(chunk % (0, 2))
    events.on_event(chunk % (1, 3))
    spent = meter.with_usage(NOTHING)
    assert (spent.input_tokens, spent.output_tokens) == (5, 5)


@pytest.mark.parametrize(("choices_per_prompt", "input_tokens"), [(1, 21), (2, 14), (3, 7)])
def test_running_usage_is_summed_over_choices_and_prompts(
    choices_per_prompt: int, input_tokens: int
) -> None:
    events = StreamEvents(lambda _: None, StreamOptions(), choices_per_prompt=choices_per_prompt)
    for index, tokens in ((0, 2), (1, 1), (0, 4), (2, 1)):
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        events.on_event(msgspec.json.encode({"choices": [{"index": index}], "usage": usage}))
    answer = events.interrupted()
    assert (answer.status_code, answer.input_tokens, answer.output_tokens) == (502, input_tokens, 6)
    assert msgspec.json.decode(answer.body)["error"]["code"] == "stream_interrupted"


@pytest.mark.parametrize("ends", [(), (TOKEN,)])
def test_stream_without_last_event_is_interrupted(ends: tuple[bytes, ...]) -> None:
    events, _ = told(*ends)
    assert events.end().status_code == 502


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        ({"message": "Out of room.", "code": 503}, 503, None),
        ({"message": "No.", "type": "BadRequestError", "code": 400}, 400, None),
        ({"message": "Overloaded.", "code": "overloaded"}, 502, "overloaded"),
        ({"message": "Odd.", "code": 7}, 502, None),
        ({"message": ["odd"]}, 502, "stream_interrupted"),
        ("odd", 502, "stream_interrupted"),
    ],
)
def test_error_event_ends_the_stream(error: object, status: int, code: str | None) -> None:
    events, emitted = told(TOKEN, msgspec.json.encode({"error": error}), TOKEN)
    answer = events.end()
    assert emitted == [TOKEN]
    assert (answer.status_code, answer.output_tokens) == (status, 1)
    envelope = msgspec.json.decode(answer.body)["error"]
    assert envelope.keys() == {"message", "type", "param", "code"}
    assert envelope["code"] == code


def test_error_with_the_last_choice_ends_the_stream_after_it() -> None:
    error = {"message": "Provider disconnected", "code": "server_error"}
    choice = {"index": 0, "delta": {"content": "b"}, "finish_reason": "error"}
    last = msgspec.json.encode({"error": error, "choices": [choice]})
    events, emitted = told(TOKEN, last, TOKEN, DONE)
    assert emitted == [TOKEN, last]
    answer = events.end()
    assert (answer.status_code, answer.output_tokens) == (502, 2)
    assert msgspec.json.decode(answer.body)["error"]["code"] == "server_error"


@pytest.mark.parametrize("payload", [b"{", b"7", b'"text"', b'{"a":"\xff"}', b"[" * 100_000])
def test_event_that_is_no_object_is_not_emitted(payload: bytes) -> None:
    events, emitted = told(payload)
    assert emitted == []
    assert msgspec.json.decode(events.end().body)["error"]["code"] == "answer_not_json"


def test_object_of_another_shape_is_emitted() -> None:
    odd = b'{"choices":7}'
    assert told(odd)[1] == [odd]


@pytest.mark.parametrize(
    ("payload", "kept"),
    [
        (b'{"choices":[{"index":0}],"usage":{"prompt_tokens":1}}', b'{"choices":[{"index":0}]}'),
        (
            b'{"choices":[{"text":",\\"usage\\":{}}"}]}',
            b'{"choices":[{"text":",\\"usage\\":{}}"}]}',
        ),
        (b'{"choices":[]}', b'{"choices":[]}'),
        (b'{"a":1,"usage":{"b":1,"c":{"d":2},"e":null},"f":{}}', b'{"a":1,"f":{}}'),
        (b'{"a":1,"usage":null}', b'{"a":1,"usage":null}'),
    ],
)
def test_usage_is_removed_from_a_chunk(payload: bytes, kept: bytes) -> None:
    assert without_usage(payload) == kept


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
