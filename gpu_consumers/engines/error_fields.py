"""The field `error` of a stream event, or of a body with status 200."""

from typing import Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

NULL: Final = msgspec.Raw(b"null")

_ERROR_STATUSES: Final = range(400, 600)
_BAD_GATEWAY: Final = 502
_SERVER_ERROR_MIN: Final = 500
_INTERRUPTED: Final = "The stream broke off with an error."
_EMPTY: Final = frozenset({b"null", b"[]"})


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class _Results(msgspec.Struct):
    """Fields that make a body a success even if it also has an error."""

    choices: msgspec.Raw = NULL
    data: msgspec.Raw = NULL
    results: msgspec.Raw = NULL
    object: msgspec.Raw = NULL


_error = msgspec.json.Decoder(_Error)
_results = msgspec.json.Decoder(_Results)


def has_error(error: msgspec.Raw) -> bool:
    """Whether the field reports an error."""
    return error is not NULL and bytes(error) != b"null"


def status_of_error_body(error: msgspec.Raw, body: bytes) -> int | None:
    """Return the status that a body with this error should have; None if it has results."""
    found = _results.decode(body)
    fields = (found.choices, found.data, found.results, found.object)
    return None if any(bytes(field) not in _EMPTY for field in fields) else _status(error)


def error_event_answer(error: msgspec.Raw) -> EngineAnswer:
    """Return an error event as an answer."""
    try:
        stated = _error.decode(error)
    except msgspec.ValidationError:
        return error_answer(
            _BAD_GATEWAY, _INTERRUPTED, type_="server_error", code="stream_interrupted"
        )
    status = _status(error)
    kind = "server_error" if status >= _SERVER_ERROR_MIN else "invalid_request_error"
    return error_answer(
        status,
        stated.message or _INTERRUPTED,
        type_=kind if isinstance(stated.code, int) else stated.type or kind,
        param=stated.param,
        code=stated.code if isinstance(stated.code, str) else None,
    )


def _status(error: msgspec.Raw) -> int:
    """Return the code if it is an HTTP error status, as some hosts send it; else 502."""
    try:
        code = _error.decode(error).code
    except msgspec.ValidationError:
        return _BAD_GATEWAY
    return code if isinstance(code, int) and code in _ERROR_STATUSES else _BAD_GATEWAY
