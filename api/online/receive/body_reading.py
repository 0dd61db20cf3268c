"""Reading of the body of an online call from raw ASGI, limited in size and time."""

import asyncio

from api.http.request_bodies import too_slow
from api.http.responses import ApiError
from api.online.receive.exchange import Exchange
from api.online.settings import OnlineSettings


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
            raise ApiError(
                400, "The body is incomplete: the connection was closed.", code="body_incomplete"
            )
        chunks.append(message.get("body", b""))
        byte_count += len(chunks[-1])
        _check_size(byte_count, bytes_max)
        exchange.body_reservation.grow_to(byte_count)
        if not message.get("more_body", False):
            exchange.connection.resume_reading()
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _require_plain_json(headers: dict[bytes, bytes]) -> None:
    if headers.get(b"content-encoding", b"identity").strip().lower() != b"identity":
        raise ApiError(
            415,
            "Send the body without Content-Encoding.",
            code="unsupported_content_encoding",
            headers={"accept-encoding": "identity"},
        )
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
        raise ApiError(415, "Send the body as application/json.", code="unsupported_media_type")


def _check_size(byte_count: int, bytes_max: int) -> None:
    if byte_count > bytes_max:
        raise ApiError(413, f"The body exceeds {bytes_max} bytes.", code="body_too_large")
