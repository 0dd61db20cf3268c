"""Which answer every failure becomes. The status of an error is decided here and nowhere else."""

from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.http.responses import ApiError, error_response, internal_error_response, unavailable
from api.runtime.database import DatabaseUnavailableError
from core.errors import MillraceError
from jobs.errors import (
    DeadLetterMissingError,
    FileMissingError,
    InputGoneError,
    JobMissingError,
    JobRunningError,
    KeyInFlightError,
    KeyReusedError,
    QuotaError,
    RequestRefusedError,
)
from results.webhooks.endpoints.endpoints import EndpointMissingError
from storage.objects.errors import ObjectMissingError, ObjectStoreAwayError, ObjectStoreFullError

_MESSAGES: Final = {
    404: "Unknown route.",
    405: "This route does not take that method.",
}

_STATUSES: Final[dict[type[RequestRefusedError], int]] = {KeyReusedError: 422, InputGoneError: 410}


def install_error_handlers(app: FastAPI) -> None:
    """Give every failure of a route the one envelope, crashes too: the middleware logs those."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(MillraceError, _on_millrace_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(Exception, _on_crash)


def as_api_error(error: MillraceError) -> ApiError | None:
    """Return the answer to one of our errors, or None when it is a crash."""
    if isinstance(error, QuotaError):
        # Clients try 429 again unless they are told.
        return ApiError(
            429,
            str(error),
            kind="insufficient_quota",
            code=error.code,
            headers={"x-should-retry": "false"},
        )
    if isinstance(error, KeyInFlightError):
        # Clients try 409 again: soon there is an answer to give.
        return ApiError(409, str(error), code=error.code, headers={"retry-after": "1"})
    if isinstance(error, JobRunningError):
        # Clients try 409 again unless they are told: here somebody has to act first.
        return ApiError(409, str(error), code=error.code, headers={"x-should-retry": "false"})
    if isinstance(error, RequestRefusedError):
        missing = FileMissingError | JobMissingError | EndpointMissingError | DeadLetterMissingError
        is_path = isinstance(error, missing) and error.param is None
        status = _STATUSES.get(type(error), 404 if is_path else 400)
        return ApiError(status, str(error), code=error.code, param=error.param)
    if isinstance(error, ObjectMissingError):
        return ApiError(404, "No such file.", code=FileMissingError.code)
    if isinstance(error, DatabaseUnavailableError | ObjectStoreAwayError):
        return unavailable(
            "The service is not available at the moment.",
            retry_after_s=2,
            code="service_unavailable",
        )
    if isinstance(error, ObjectStoreFullError):
        return unavailable("There is no room left.", retry_after_s=30, code="storage_full")
    return None


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_millrace_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, MillraceError)
    answer = as_api_error(error)
    if answer is None:
        raise error
    return error_response(answer)


async def _on_validation_error(_: Request, error: Exception) -> Response:
    """Name the first bad parameter, without its value."""
    assert isinstance(error, RequestValidationError)
    mistake = error.errors()[0]
    param = str(mistake["loc"][-1])
    return error_response(
        ApiError(400, f"{param}: {mistake['msg']}.", code="invalid_value", param=param)
    )


async def _on_http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = _MESSAGES.get(error.status_code, str(error.detail))
    return error_response(ApiError(error.status_code, message, headers=error.headers))


async def _on_crash(_: Request, __: Exception) -> Response:
    return internal_error_response()
