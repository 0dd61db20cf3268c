"""Goal: a body arrives in time; Millrace's fields are removed, every other byte is unchanged."""

from types import SimpleNamespace
from typing import Any

import pytest

from api.http.errors import ApiError
from api.http.request_bodies import MinReadRate
from api.online.call_request import (
    check_zero_retention,
    header_timeout_s,
    may_be_accepted,
    parse_call,
    preferred_wait_s,
)
from api.online.calls import ReceivedCall
from core.bodies.body_limit_settings import BodyLimits
from core.bodies.own_fields import STREAMED_ENDPOINTS
from core.ids import new_uuid
from registry.models import ENDPOINTS
from tenancy.api_keys import Principal

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "stream"),
    [
        (b' { "model" : "m", "n": 1e3, "stream": null, "x": {"timeout_ms": 1} }\n', False),
        (b'{"model":"m","stream":1}', True),  # as vLLM reads it
        (b'{"model":"m","stream":"False"}', False),
        (b'{"model":"m","max_tokens":"many","n":[],"stream_options":7}', False),
    ],
)
def test_a_body_without_own_fields_is_unchanged(body: bytes, stream: bool) -> None:
    parsed = parse_call(CHAT, body)

    assert parsed.body is body
    assert (parsed.model, parsed.stream) == ("m", stream)
    assert (parsed.timeout_s, parsed.background) == (None, False)
    assert parsed.requested.prompt > 0


@pytest.mark.parametrize(
    ("own", "others", "timeout_s", "background"),
    [
        (b'"timeout_ms":1500.0,"background":true', b',"s":0.10,"stream":true', 1.5, True),
        (b'"timeout_ms":null', b"", None, False),
        (b'"background":null', b"", None, False),
        (b'"background":false', b"", None, False),
    ],
)
def test_own_fields_are_removed(
    own: bytes, others: bytes, timeout_s: float | None, background: bool
) -> None:
    parsed = parse_call(CHAT, b'{%b,"model":"m"%b}' % (own, others))

    assert parsed.body == b'{"model":"m"%b}' % others
    assert (parsed.timeout_s, parsed.background) == (timeout_s, background)


@pytest.mark.parametrize("endpoint", sorted({*ENDPOINTS} - STREAMED_ENDPOINTS))
@pytest.mark.parametrize("stream", [b"true", b'"x"', b"[7]"])
def test_stream_field_is_ignored_without_streaming(endpoint: str, stream: bytes) -> None:
    body = b'{"model":"m","stream":%b}' % stream
    parsed = parse_call(endpoint, body)

    assert parsed.body is body
    assert not parsed.stream


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"", "invalid_json", None),
        (b"\xef\xbb\xbf{}", "invalid_json", None),
        (b'{"model":"m"} x', "invalid_json", None),
        (b'{"model":"m","x":NaN}', "invalid_json", None),
        (b'{"model":"m","x":' * 100_000, "invalid_json", None),
        (b'{"model":"m","x":"\xff"}', "invalid_json", None),
        (b'{"messages":[]}', "invalid_type", "model"),
        (b'{"model":null}', "invalid_type", "model"),
        (b'{"model":"m","stream":2}', "invalid_type", "stream"),
        (b'{"model":"m","stream":"maybe"}', "invalid_type", "stream"),
        (b'{"model":"m","stream":[true]}', "invalid_type", "stream"),
        (b'{"model":"m","timeout_ms":"1"}', "invalid_type", "timeout_ms"),
        (b'{"model":"m","timeout_ms":0}', "invalid_value", "timeout_ms"),
        (b'{"model":"m","timeout_ms":-5}', "invalid_value", "timeout_ms"),
        (b'{"model":"m","timeout_ms":86400001}', "invalid_value", "timeout_ms"),
        (b'{"model":"m","queue_timeout_ms":0}', "invalid_value", "queue_timeout_ms"),
        (b'{"model":"m","queue_timeout_ms":[]}', "invalid_type", "queue_timeout_ms"),
    ],
)
def test_invalid_calls_are_refused(body: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        parse_call(CHAT, body)

    assert refused.value.status == 400
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"0",
        b"-1",
        b"1.5",
        b"1e3",
        b"86400001",
        b"9" * 5000,
        b"+5",
        b"NaN",
        b"1 2",
        b"\xc2\xb2",
    ],
)
def test_an_invalid_timeout_header(value: bytes) -> None:
    with pytest.raises(ApiError):
        header_timeout_s({b"x-request-timeout-ms": value}, b"x-request-timeout-ms")


def test_a_timeout_header() -> None:
    assert header_timeout_s({}, b"x-request-timeout-ms") is None
    given = {b"x-request-timeout-ms": b" 250 ", b"x-request-queue-timeout-ms": b"50"}
    assert header_timeout_s(given, b"x-request-timeout-ms") == 0.25
    assert header_timeout_s(given, b"x-request-queue-timeout-ms") == 0.05


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b'{"model":"m"}', {}, False),
        (b'{"model":"m","background":true}', {}, True),
        (b'{"model":"m"}', {b"prefer": b"respond-async, wait=5"}, True),
        (b'{"model":"m"}', {b"idempotency-key": b"k"}, False),
        (b'{"model":"m","stream":true}', {b"prefer": b"wait=5"}, False),
    ],
)
def test_which_calls_may_be_answered_by_a_job(
    body: bytes, headers: dict[bytes, bytes], expected: bool
) -> None:
    parsed = parse_call("/v1/chat/completions", body)
    assert may_be_accepted(parsed, headers) is expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"wait=5", 5.0),
        (b'Wait="7"; x, respond-async', 7.0),
        (b"wait=1000000", 1_000_000.0),
        (b"wait=" + b"0" * 50 + b"3", 3.0),
        (b"wait=" + b"9" * 5000, float("inf")),
        (b"wait=-5", None),
        (b"wait=1.5", None),
        (b"wait=NaN", None),
        (b"wait=\xb2", None),
        (b"await=5", None),
        (b"", None),
    ],
)
def test_a_preferred_wait_has_any_number_of_digits(value: bytes, expected: float | None) -> None:
    assert preferred_wait_s({b"prefer": value}) == expected


WAIT, KEY = {b"prefer": b"wait=5"}, {b"idempotency-key": b"k"}


@pytest.mark.parametrize(
    ("body", "headers", "is_stored"),
    [
        (b'{"model":"m"}', {}, False),
        (b'{"model":"m"}', WAIT, True),
        (b'{"model":"m"}', KEY, True),
        (b'{"model":"m","background":true}', {}, True),
        (b'{"model":"m","stream":true}', WAIT, False),
        (b'{"model":"m","stream":true}', WAIT | KEY, True),
    ],
)
def test_zero_retention_refuses_calls_whose_response_is_stored(
    body: bytes, headers: dict[bytes, bytes], is_stored: bool
) -> None:
    exchange: Any = SimpleNamespace(headers=headers)
    ids = (new_uuid(), new_uuid())
    parsed = parse_call(CHAT, body)
    check_zero_retention(ReceivedCall(exchange, Principal(*ids), parsed))
    received = ReceivedCall(exchange, Principal(*ids, zero_retention=True), parsed)
    if not is_stored:
        check_zero_retention(received)
        return
    with pytest.raises(ApiError) as refused:
        check_zero_retention(received)
    assert (refused.value.status, refused.value.code) == (403, "zero_retention")


@pytest.mark.parametrize(
    ("chunks", "is_enough", "timeout_s"),
    [
        ([(1, 1.0)] * 10, [True] * 9 + [False], 10),  # slow: fails at the end of the window
        ([(1000, 0.1), (1, 9.9)], [True, True], 10),  # a pause within the window
        ([(1, 4.0)], [True], 6),
        ([(1, 0.0)] * 1000, [True] * 1000, 10),  # time to process does not count
    ],
)
def test_a_body_must_arrive_at_its_rate(
    chunks: list[tuple[int, float]], is_enough: list[bool], timeout_s: float
) -> None:
    rate = MinReadRate(window_s=10, bytes_per_s_min=100)

    assert [rate.add(*chunk) for chunk in chunks] == is_enough
    assert rate.timeout_s() == timeout_s


def test_a_body_of_too_many_messages_is_refused() -> None:
    with pytest.raises(ApiError) as refused:
        parse_call(CHAT, b'{"model":"m","messages":[%b{}]}' % (b"{}," * 100_000))

    assert (refused.value.status, refused.value.code) == (400, "invalid_value")
    assert refused.value.param == "messages"
    assert "at most 10000" in refused.value.message


def test_limits_of_bodies_are_settings() -> None:
    body = b'{"model":"m","messages":[%b{}]}' % (b"{}," * 3_000)
    assert parse_call(CHAT, body, BodyLimits(messages_max=4_000)).body is body
    with pytest.raises(ApiError):
        parse_call(CHAT, body)
