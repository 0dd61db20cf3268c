"""What an engine says went wrong: the field `error` of an event, or of a body with status 200."""

from typing import Final

import msgspec

from gpu_consumers.engines.engine import EngineAnswer
from gpu_consumers.engines.error_answers import error_answer

NULL: Final = msgspec.Raw(b"null")

_ERROR_STATUSES: Final = range(400, 600)
_BAD_GATEWAY: Final = 502
_SERVER_ERROR_MIN: Final = 500
_INTERRUPTED: Final = "The stream broke off with an error."
_NOTHING: Final = frozenset({b"null", b"[]"})


class _Error(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: int | str | None = None


class _Work(msgspec.Struct):
    """What says that a body holds an answer, whatever else it says."""

    choices: msgspec.Raw = NULL
    data: msgspec.Raw = NULL
    results: msgspec.Raw = NULL
    object: msgspec.Raw = NULL


_error = msgspec.json.Decoder(_Error)
_work = msgspec.json.Decoder(_Work)


def has_error(error: msgspec.Raw) -> bool:
    """Whether the field says that something went wrong."""
    return error is not NULL and bytes(error) != b"null"


def status_of_error_body(error: msgspec.Raw, body: bytes) -> int | None:
    """Return the status that a body with this error should have had; None where it is an answer."""
    work = _work.decode(body)
    fields = (work.choices, work.data, work.results, work.object)
    return None if any(bytes(field) not in _NOTHING for field in fields) else _status(error)


def error_event_answer(error: msgspec.Raw) -> EngineAnswer:
    """Return an error event as an answer."""
    try:
        said = _error.decode(error)
    except msgspec.ValidationError:
        return error_answer(
            _BAD_GATEWAY, _INTERRUPTED, type_="server_error", code="stream_interrupted"
        )
    status = _status(error)
    kind = "server_error" if status >= _SERVER_ERROR_MIN else "invalid_request_error"
    return error_answer(
        status,
        said.message or _INTERRUPTED,
        type_=kind if isinstance(said.code, int) else said.type or kind,
        param=said.param,
        code=said.code if isinstance(said.code, str) else None,
    )


def _status(error: msgspec.Raw) -> int:
    """Return the code where it is an HTTP status of an error: some hosts have no other place."""
    try:
        code = _error.decode(error).code
    except msgspec.ValidationError:
        return _BAD_GATEWAY
    return code if isinstance(code, int) and code in _ERROR_STATUSES else _BAD_GATEWAY
