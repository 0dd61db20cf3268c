"""Parsing of the few body fields that Millrace interprets. All others belong to the engine."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from api.http.responses import ApiError
from api.online.calls import ParsedCall
from core.streaming import STREAMED_ENDPOINTS, StreamField, is_stream_requested
from jobs.input.token_estimates import token_count

_TIMEOUT_MS_MAX: Final = 86_400_000
_FIELD: Final = re.compile(r"`\$\.([a-z_]+)")
_MISSING_FIELD: Final = re.compile(r"missing required field `([a-z_]+)`")


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
_OWN_FIELDS: Final = ("timeout_ms", "queue_timeout_ms", "background")


def parse_call(endpoint: str, body: bytes) -> ParsedCall:
    """Return the call in `body`. Raises ApiError (400)."""
    try:
        body.decode()  # the decoder does not check the fields that it skips
        fields = (_STREAMED_FIELDS if endpoint in STREAMED_ENDPOINTS else _FIELDS).decode(body)
        has_own_fields = any(getattr(fields, name) is not UNSET for name in _OWN_FIELDS)
        engine_body = _without_own_fields(body) if has_own_fields else body
    except msgspec.ValidationError as error:
        raise _invalid_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "The body is not valid JSON.", code="invalid_json") from None
    return ParsedCall(
        endpoint=endpoint,
        body=engine_body,
        model=fields.model,
        stream=isinstance(fields, _StreamedFields) and _stream(fields.stream),
        timeout_s=_field_s(fields.timeout_ms, "timeout_ms"),
        queue_timeout_s=_field_s(fields.queue_timeout_ms, "queue_timeout_ms"),
        background=fields.background is True,
        token_count=token_count(endpoint, engine_body, len(engine_body)),
    )


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
    for name in _OWN_FIELDS:
        fields.pop(name, None)
    return msgspec.json.encode(fields)


def _invalid_type(message: str) -> ApiError:
    field = _MISSING_FIELD.search(message) or _FIELD.search(message)
    return ApiError(400, f"{message}.", code="invalid_type", param=field[1] if field else None)
