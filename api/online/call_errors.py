"""The errors of ours that end a call after its admission."""

from http import HTTPStatus
from math import ceil
from typing import Final

import msgspec

from api.http.errors import ApiError, unavailable
from topics.records.object_keys import ForeignObjectError
from topics.records.records import ReplyEnd

DEADLINE: Final = "deadline_exceeded"
QUEUE_TIMEOUT: Final = "queue_timeout"
SLOW_READER: Final = "slow_reader"

JOB_CANCELLED: Final = "job_cancelled"

RESTARTING: Final = "server_restarting"
LOG_UNAVAILABLE: Final = "log_unavailable"
NO_CAPACITY: Final = "no_capacity"

LOCAL_FAILURES: Final = frozenset({RESTARTING, LOG_UNAVAILABLE})
"""Failures of this process and its connection to the log. A committed call continues elsewhere."""

_CANCELLED_CODE: Final = "cancelled"  # of the reply to a call that a replica cancelled


class _Error(msgspec.Struct):
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


def slow_reader() -> ApiError:
    """Return the error of a stream whose client reads too slowly."""
    return ApiError(408, "The stream was cut off because it was read too slowly.", code=SLOW_READER)


def stream_interrupted() -> ApiError:
    """Return the error of a call whose execution is lost."""
    return ApiError(
        502, "The answer was interrupted.", kind="server_error", code="stream_interrupted"
    )


def foreign_object() -> ApiError:
    """Return the error of a call whose reply names an object of another call."""
    return ApiError(
        502,
        "The answer names a stored object that is not its own.",
        kind="server_error",
        code=ForeignObjectError.code,
    )


def deadline_exceeded() -> ApiError:
    """Return the error of a call that reached its deadline."""
    return ApiError(504, "The call was not answered in time.", kind="timeout_error", code=DEADLINE)


def job_cancelled() -> ApiError:
    """Return the error of a call whose job was cancelled. Official clients retry any other 409."""
    return ApiError(
        409,
        "The job was cancelled before it was answered.",
        code=JOB_CANCELLED,
        headers={"x-should-retry": "false"},
    )


def is_cancelled_reply(end: ReplyEnd) -> bool:
    """Whether a replica reports that the job of a durable call was cancelled or closed."""
    if end.status_code != HTTPStatus.CONFLICT:
        return False
    try:
        return msgspec.json.decode(end.body, type=_Envelope).error.code == _CANCELLED_CODE
    except msgspec.MsgspecError:
        return False


def without_retry(refusal: ApiError) -> ApiError:
    """Return an error that advises against a retry, which would be charged again."""
    return ApiError(
        refusal.status,
        refusal.message,
        kind=refusal.kind,
        code=refusal.code,
        headers={**(refusal.headers or {}), "x-should-retry": "false"},
    )


def queue_timeout() -> ApiError:
    """Return the error of a call whose execution did not start within its queue timeout."""
    return ApiError(
        504,
        "The execution of the call did not start within its queue timeout.",
        kind="timeout_error",
        code=QUEUE_TIMEOUT,
    )


def shutting_down() -> ApiError:
    """Return the error of a call that outlasts its process."""
    return unavailable("The server is restarting.", retry_after_s=1, code=RESTARTING)


def log_unavailable() -> ApiError:
    """Return the error of a call that is refused, or ends, while the log does not answer."""
    return unavailable(
        "The service is not available at the moment.", retry_after_s=2, code=LOG_UNAVAILABLE
    )


def queue_full(status: int, message: str, retry_after_s: float) -> ApiError:
    """Return a refusal because of load."""
    return ApiError(
        status,
        message,
        kind="service_unavailable_error" if status == 503 else "rate_limit_exceeded",
        code="queue_full",
        headers={"retry-after": str(retry_after_seconds(retry_after_s))},
    )


def no_capacity() -> ApiError:
    """Return the refusal of a call whose pool has no replica."""
    return unavailable(
        "No replica serves the model at the moment.", retry_after_s=5, code=NO_CAPACITY
    )


RETRY_AFTER_S_MAX: Final = 59
"""The official clients for Node and Go ignore a `Retry-After` of a minute, and return at once."""


def retry_after_seconds(seconds: float) -> int:
    """Return a `Retry-After` of 1 to 59 whole seconds."""
    return min(RETRY_AFTER_S_MAX, max(1, ceil(seconds)))
