"""Why a call ends, after it was let in, by an error of ours."""

from http import HTTPStatus
from typing import Final

import msgspec

from api.http.responses import ApiError, unavailable
from topics.records.records import ReplyEnd

DEADLINE: Final = "deadline_exceeded"
QUEUE_TIMEOUT: Final = "queue_timeout"
SLOW_READER: Final = "slow_reader"

JOB_CANCELLED: Final = "job_cancelled"

RESTARTING: Final = "server_restarting"
LOG_UNAVAILABLE: Final = "log_unavailable"

LOCAL_FAILURES: Final = frozenset({RESTARTING, LOG_UNAVAILABLE})
"""Failures of this process and its way to the log: a call that is committed goes on."""

_REPLICAS_CODE: Final = "cancelled"  # in the answer of a call that was cut so


class _Error(msgspec.Struct):
    code: str | None = None


class _Envelope(msgspec.Struct):
    error: _Error


def slow_reader() -> ApiError:
    """Return why a stream is cut whose reader does not keep up."""
    return ApiError(408, "The stream was read too slowly.", code=SLOW_READER)


def stream_interrupted() -> ApiError:
    """Return why a stream ends whose execution is lost."""
    return ApiError(
        502, "The answer was interrupted.", kind="server_error", code="stream_interrupted"
    )


def deadline_exceeded() -> ApiError:
    """Return why a call ends at its deadline."""
    return ApiError(504, "The call was not answered in time.", kind="timeout_error", code=DEADLINE)


def job_cancelled() -> ApiError:
    """Return why a call ends whose job was cancelled; official clients repeat any other 409."""
    return ApiError(
        409,
        "The job was cancelled before it had an answer.",
        code=JOB_CANCELLED,
        headers={"x-should-retry": "false"},
    )


def is_cancelled_reply(end: ReplyEnd) -> bool:
    """Whether a replica says that the job of a durable call was cancelled, or closed otherwise."""
    if end.status_code != HTTPStatus.CONFLICT:
        return False
    try:
        return msgspec.json.decode(end.body, type=_Envelope).error.code == _REPLICAS_CODE
    except msgspec.MsgspecError:
        return False


def without_retry(refusal: ApiError) -> ApiError:
    """Return why an answer is not given that was computed: a repeat would be paid for again."""
    return ApiError(
        refusal.status,
        refusal.message,
        kind=refusal.kind,
        code=refusal.code,
        headers={**(refusal.headers or {}), "x-should-retry": "false"},
    )


def queue_timeout() -> ApiError:
    """Return why a call ends whose execution did not begin soon enough."""
    return ApiError(
        504,
        "The call waited longer than it may for its execution.",
        kind="timeout_error",
        code=QUEUE_TIMEOUT,
    )


def shutting_down() -> ApiError:
    """Return why a call ends that outlasts the process that holds it."""
    return unavailable("The server is restarting.", retry_after_s=1, code=RESTARTING)


def log_unavailable() -> ApiError:
    """Return why a call is refused, or ends, while the log does not answer."""
    return unavailable(
        "The service is not available at the moment.", retry_after_s=2, code=LOG_UNAVAILABLE
    )
