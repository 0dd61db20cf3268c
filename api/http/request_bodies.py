"""Request bodies, limited in size and time, and never decoded by FastAPI."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final, TypeVar

import msgspec
from fastapi import Request
from starlette.requests import ClientDisconnect

from api.http.errors import ApiError
from api.settings import ApiSettings
from core.clock import Clock

T = TypeVar("T")

_NO_BODY_SHA256: Final = hashlib.sha256(b"").digest()

# msgspec ends a message with the path of the field, e.g. "- at `$.metadata[...]`".
_FIELD: Final = re.compile(r"`\$\.([a-z_]+(?:\.[a-z_]+)*)")
_INVALID_VALUE: Final = re.compile(r"Invalid enum value .*(?= - at `\$)", re.DOTALL)  # of any size
_MISSING_FIELD: Final = re.compile(r"missing required field `([a-z_]+)`")


async def json_body(request: Request, shape: type[T], settings: ApiSettings) -> T:
    """Return the body as `shape`. Raises ApiError: 400, 408, 413 or 415."""
    require_identity_encoding(request)
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise unsupported_media_type()
    raw = await _small_body(request, settings)
    request.state.body_sha256 = hashlib.sha256(raw).digest()
    try:
        return msgspec.json.decode(raw, type=shape)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise unreadable_json(error) from None


def body_sha256(request: Request) -> bytes:
    """Return the hash of the body that `json_body` read; that of an empty one if it read none."""
    digest: bytes = getattr(request.state, "body_sha256", _NO_BODY_SHA256)
    return digest


def require_identity_encoding(request: Request) -> None:
    """Refuse compressed bodies. Raises ApiError (415)."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise unsupported_encoding()


def declared_bytes(request: Request) -> int | None:
    """Return Content-Length, or None without one."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


class MinReadRate:
    """The minimum rate of a body, by windows. Only time spent waiting for the client counts."""

    def __init__(self, *, window_s: float, bytes_per_s_min: int) -> None:
        """Each window of `window_s` must bring as many bytes as the rate requires."""
        self._window_s = window_s
        self._bytes_min = window_s * bytes_per_s_min
        self._waited_s = 0.0
        self._bytes = 0

    def timeout_s(self) -> float:
        """Return the longest wait for the next bytes."""
        return self._window_s - self._waited_s

    def add(self, byte_count: int, waited_s: float) -> bool:
        """Count bytes that arrived after `waited_s`; False when a window ended with too few."""
        self._bytes += byte_count
        self._waited_s += waited_s
        if self._waited_s < self._window_s:
            return True
        is_enough = self._bytes >= self._bytes_min
        self._waited_s = 0.0
        self._bytes = 0
        return is_enough


async def read_at_min_rate(
    request: Request, rate: MinReadRate, clock: Clock
) -> AsyncIterator[bytes]:
    """Yield the body in non-empty chunks. Raises ApiError: 400 when the client disconnects, 408."""
    is_complete = False
    while not is_complete:
        started_s = clock.monotonic_s()
        data = b""
        # Not `request.stream()`: a cancelled wait would end that generator.
        with suppress(TimeoutError):
            async with asyncio.timeout(rate.timeout_s()):
                message = await request.receive()
                if message["type"] != "http.request":
                    raise body_incomplete()
                data = message.get("body", b"")
                is_complete = not message.get("more_body", False)
        if not rate.add(len(data), clock.monotonic_s() - started_s) and not is_complete:
            raise too_slow()
        if data:
            yield data


async def _small_body(request: Request, settings: ApiSettings) -> bytes:
    bytes_max = settings.json_bytes_max
    if (declared_bytes(request) or 0) > bytes_max:
        raise body_too_large(bytes_max)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.json_body_timeout_s):
            async for data in request.stream():
                body += data
                if len(body) > bytes_max:
                    raise body_too_large(bytes_max)
    except TimeoutError:
        raise too_slow() from None
    except ClientDisconnect:
        raise body_incomplete() from None
    return bytes(body)


def too_slow() -> ApiError:
    """Return the refusal of a body that does not arrive in time."""
    return ApiError(408, "The body came too slowly.", code="request_timeout")


def body_too_large(bytes_max: int) -> ApiError:
    """Return the refusal of a body above the limit."""
    return ApiError(413, f"The body exceeds {bytes_max} bytes.", code="body_too_large")


def body_incomplete() -> ApiError:
    """Return the refusal of a body whose client disconnected."""
    return ApiError(
        400, "The body is incomplete: the connection was closed.", code="body_incomplete"
    )


def unsupported_media_type() -> ApiError:
    """Return the refusal of a body that is not declared as JSON."""
    return ApiError(415, "Send the body as application/json.", code="unsupported_media_type")


def unsupported_encoding() -> ApiError:
    """Return the refusal of a compressed body: a small one can expand to a huge one."""
    return ApiError(
        415,
        "Send the body without Content-Encoding.",
        code="unsupported_content_encoding",
        headers={"accept-encoding": "identity"},
    )


def unreadable_json(error: Exception) -> ApiError:
    """Return the refusal of a body that is not JSON, or not of the required shape."""
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, "The body is not valid JSON.", code="invalid_json")
    message = _INVALID_VALUE.sub("This value is not allowed", str(error))
    field = _MISSING_FIELD.search(message) or _FIELD.search(message)
    param = field[1] if field else None
    return ApiError(400, f"{message}.", code="invalid_type", param=param)
