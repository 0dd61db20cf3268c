"""Why a call ends, after it was let in, by an error of ours."""

from typing import Final

from api.answers import ApiError, unavailable

DEADLINE: Final = "deadline_exceeded"
QUEUE_TIMEOUT: Final = "queue_timeout"
SLOW_READER: Final = "slow_reader"

RESTARTING: Final = "server_restarting"
LOG_AWAY: Final = "log_unavailable"

HERE_ALONE: Final = frozenset({RESTARTING, LOG_AWAY})
"""Failures of this process and its way to the log: a call that is committed goes on."""


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
        "The service is not available at the moment.", retry_after_s=2, code=LOG_AWAY
    )
