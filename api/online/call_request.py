"""Step 1 of an online call: the body is read and parsed, and the client's preferences with it.

Millrace interprets few fields. All others belong to the engine.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from api.http.errors import ApiError
from api.http.request_bodies import (
    body_incomplete,
    body_too_large,
    too_slow,
    unreadable_json,
    unsupported_encoding,
    unsupported_media_type,
)
from api.online.calls import ParsedCall, ReceivedCall
from api.online.exchange import Exchange
from api.online.settings import OnlineSettings
from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.bodies.body_limits import find_exceeded_limit
from core.bodies.own_fields import OWN_FIELDS, STREAMED_ENDPOINTS, StreamField, is_stream_requested
from core.bodies.token_estimates import requested_tokens


async def read_body(exchange: Exchange, settings: OnlineSettings) -> bytes:
    """Return the whole body.

    Raises ApiError: 400 when the client disconnects, 408, 413, 415, and 429 or 503 when the memory
    limit of bodies is exceeded.
    """
    _require_plain_json(exchange.headers)
    declared = int_header(exchange.headers, b"content-length") or 0
    _check_size(declared, settings.bytes_max)  # memory is reserved as the body arrives
    if exchange.connection.has_whole_body:  # the usual case needs no timer
        return await _read(exchange, settings.bytes_max)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await _read(exchange, settings.bytes_max)
    except TimeoutError:
        raise too_slow() from None


def int_header(headers: dict[bytes, bytes], name: bytes) -> int | None:
    """Return a header that is a plain number, or None."""
    value = headers.get(name, b"")
    return int(value) if value.isdigit() and len(value) < 20 else None


async def _read(exchange: Exchange, bytes_max: int) -> bytes:
    chunks: list[bytes] = []
    byte_count = 0
    while True:
        message = await exchange.receive()
        if message["type"] != "http.request":
            raise body_incomplete()
        chunks.append(message.get("body", b""))
        byte_count += len(chunks[-1])
        _check_size(byte_count, bytes_max)
        exchange.body_reservation.grow_to(byte_count)
        if not message.get("more_body", False):
            exchange.connection.resume_reading()
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _require_plain_json(headers: dict[bytes, bytes]) -> None:
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise unsupported_encoding()
    if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
        raise ApiError(
            415,
            "Send the body without a Transfer-Encoding other than chunked.",
            code="unsupported_content_encoding",
        )
    kind = headers.get(b"content-type", b"application/json")
    if kind != b"application/json" and (
        kind.partition(b";")[0].strip().lower() != b"application/json"
    ):
        raise unsupported_media_type()


def _check_size(byte_count: int, bytes_max: int) -> None:
    if byte_count > bytes_max:
        raise body_too_large(bytes_max)


_TIMEOUT_MS_MAX: Final = 86_400_000


class _Fields(msgspec.Struct, gc=False):
    model: str
    timeout_ms: float | UnsetType | None = UNSET
    queue_timeout_ms: float | UnsetType | None = UNSET
    background: bool | UnsetType | None = UNSET


class _StreamedFields(_Fields, gc=False):
    """Fields of an endpoint that can stream. Elsewhere `stream` may hold anything."""

    stream: StreamField = None


_FIELDS: Final = msgspec.json.Decoder(_Fields)
_STREAMED_FIELDS: Final = msgspec.json.Decoder(_StreamedFields)
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_call(endpoint: str, body: bytes, limits: BodyLimits = DEFAULT_BODY_LIMITS) -> ParsedCall:
    """Return the call in `body`. Raises ApiError (400)."""
    try:
        body.decode()  # the decoder does not check the fields that it skips
        fields = (_STREAMED_FIELDS if endpoint in STREAMED_ENDPOINTS else _FIELDS).decode(body)
        _check_limits(body, limits)
        has_own_fields = any(getattr(fields, name) is not UNSET for name in OWN_FIELDS)
        engine_body = _without_own_fields(body) if has_own_fields else body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable_json(error) from None
    return ParsedCall(
        endpoint=endpoint,
        body=engine_body,
        model=fields.model,
        stream=isinstance(fields, _StreamedFields) and _stream(fields.stream),
        timeout_s=_field_s(fields.timeout_ms, "timeout_ms"),
        queue_timeout_s=_field_s(fields.queue_timeout_ms, "queue_timeout_ms"),
        background=fields.background is True,
        requested=requested_tokens(endpoint, engine_body),
    )


def _check_limits(body: bytes, limits: BodyLimits) -> None:
    if exceeded := find_exceeded_limit(body, limits):
        raise ApiError(400, exceeded.message, code="invalid_value", param=exceeded.param)


def header_timeout_s(headers: Mapping[bytes, bytes], name: bytes) -> float | None:
    """Return a header in milliseconds as seconds. Raises ApiError (400)."""
    value = headers.get(name)
    if value is None:
        return None
    text = value.strip()
    if not text.isdigit() or len(text) > len(str(_TIMEOUT_MS_MAX)):
        raise _invalid_timeout(name.decode())
    return _seconds(int(text), name.decode())


def _stream(field: StreamField) -> bool:
    try:
        return is_stream_requested(field)
    except ValueError as error:
        raise ApiError(400, f"{error}.", code="invalid_type", param="stream") from None


def _field_s(timeout_ms: float | UnsetType | None, param: str) -> float | None:
    return _seconds(timeout_ms, param) if isinstance(timeout_ms, float) else None


def _seconds(timeout_ms: float, param: str) -> float:
    if not 1 <= timeout_ms <= _TIMEOUT_MS_MAX:
        raise _invalid_timeout(param)
    return timeout_ms / 1000


def _invalid_timeout(param: str) -> ApiError:
    return ApiError(
        400,
        f"The timeout must be 1 to {_TIMEOUT_MS_MAX} milliseconds.",
        code="invalid_value",
        param=param,
    )


def _without_own_fields(body: bytes) -> bytes:
    """Remove Millrace's fields. Other values stay the same, byte for byte."""
    fields = _OBJECT.decode(body)
    for name in OWN_FIELDS:
        fields.pop(name, None)
    return msgspec.json.encode(fields)


QUEUE_TIMEOUT_HEADER: Final = b"x-request-queue-timeout-ms"

_WAIT: Final = re.compile(rb"(?:^|[,;\s])wait\s*=\s*\"?([0-9]+)\"?(?=$|[,;\s])")


def wants_durable(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the call outlives its connection. A stream cannot: it would have no reader."""
    if parsed.background or parsed.stream:
        return parsed.background
    return has_idempotency_key(headers) or preferred_wait_s(headers) is not None


def may_be_accepted(parsed: ParsedCall, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the response may be a 202 that refers to a job."""
    waits = preferred_wait_s(headers) is not None and not parsed.stream
    return parsed.background or waits


def has_idempotency_key(headers: Mapping[bytes, bytes]) -> bool:
    """Whether the call has an idempotency key."""
    return b"idempotency-key" in headers


def check_zero_retention(received: ReceivedCall) -> None:
    """Refuse a call whose response would be stored for a tenant with zero retention.

    Raises ApiError (403).
    """
    headers = received.exchange.headers
    is_stored = may_be_accepted(received.parsed, headers) or has_idempotency_key(headers)
    if received.principal.zero_retention and is_stored:
        raise ApiError(
            403,
            "This tenant has zero retention. Send the call without 'background', 'Prefer: wait' "
            "and Idempotency-Key: their answers are stored.",
            code="zero_retention",
        )


def preferred_wait_s(headers: Mapping[bytes, bytes]) -> float | None:
    """Return N of `Prefer: wait=N` (RFC 7240), or None; a malformed preference is ignored.

    N has any number of digits, so it may be infinite. Callers apply a limit.
    """
    found = _WAIT.search(headers.get(b"prefer", b"").lower())
    return None if found is None else float(found[1])


def with_default_wait(received: ReceivedCall, waits_s: Mapping[str, float]) -> ReceivedCall:
    """Return the call with its endpoint's default wait, if the client sent no preference.

    A call that limits its time in the queue waits for its reply instead. The default does not
    apply to a tenant with zero retention, whose replies cannot be stored for later.
    """
    exchange, parsed = received.exchange, received.parsed
    wait_s = waits_s.get(parsed.endpoint)
    if wait_s is None:
        return received
    limits_queue = parsed.queue_timeout_s is not None or QUEUE_TIMEOUT_HEADER in exchange.headers
    is_fixed = (
        parsed.stream or parsed.background or received.principal.zero_retention or limits_queue
    )
    if is_fixed or preferred_wait_s(exchange.headers) is not None:
        return received
    preferred = [exchange.headers.get(b"prefer", b""), b"wait=%d" % round(wait_s)]
    prefer = b", ".join(filter(None, preferred))
    exchange = replace(exchange, headers={**exchange.headers, b"prefer": prefer})
    return replace(received, exchange=exchange)
