"""Error responses, and the response to every error of Millrace, which only this module decides."""

from collections.abc import Mapping
from typing import Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from api.runtime.database import DatabaseUnavailableError
from core.errors import MillraceError
from jobs.errors import (
    DeadLetterNotFoundError,
    IdempotencyKeyInFlightError,
    IdempotencyKeyReusedError,
    InputFileRemovedError,
    InvalidRequestError,
    JobNotEndedError,
    JobNotFoundError,
    QuotaExceededError,
    UploadedFileNotFoundError,
)
from registry.adapters.adapter_check import InvalidAdapterError
from registry.engine_options.engine_options import InvalidOptionError
from registry.errors import (
    AliasLoopError,
    AmbiguousVersionError,
    CodeNotAllowedError,
    InvalidModelError,
    ModelInUseError,
    ModelKeyNotFoundError,
    ModelKeyRevokedError,
    ModelNotFoundError,
    ModelRetiredError,
    ModelVersionConflictError,
    NameTakenError,
    RevisionMismatchError,
)
from registry.manifests.manifest import InvalidManifestError
from registry.memory_plan.model_shape import InvalidConfigError
from registry.memory_plan.safetensors_header import InvalidWeightsError
from registry.signing.keys import InvalidKeyError
from registry.signing.model_signature import InvalidSignatureError
from registry.store.published_objects import ModelObjectsMissingError
from results.webhooks.endpoints.endpoints import EndpointNotFoundError
from storage.objects.errors import (
    ObjectNotFoundError,
    ObjectStoreFullError,
    ObjectStoreUnavailableError,
)
from tenancy.reserved_shares import ReservedSharesError
from tenancy.tenants import (
    InvalidTenantNameError,
    TenantExistsError,
    TenantHoursError,
    TenantModelError,
    TenantNotFoundError,
    ZeroRetentionConflictError,
)


class ApiError(Exception):
    """An error response. Its message is for the client."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`kind` is the `type` on the wire, `param` the invalid field."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param
        self.headers = headers


def error_response(error: ApiError) -> Response:
    """Return the error envelope; clients rely on the presence of `param` and `code`."""
    return Response(
        error_body(error), error.status, dict(error.headers or {}), media_type="application/json"
    )


def error_body(error: ApiError) -> bytes:
    """Return the bytes of the error envelope."""
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": fields})


def internal_error_response() -> Response:
    """Return the response to a request that crashed, without details."""
    return error_response(
        ApiError(500, "The server had an error.", kind="server_error", code="internal")
    )


def unavailable(message: str, *, retry_after_s: int, code: str) -> ApiError:
    """Return a 503. `retry_after_s` is 1 to 59: official clients ignore 60 and more."""
    assert 1 <= retry_after_s <= 59
    return ApiError(
        503,
        message,
        kind="service_unavailable_error",
        code=code,
        headers={"retry-after": str(retry_after_s)},
    )


_MESSAGES: Final = {404: "Unknown route.", 405: "This route does not support that method."}

_STATUSES: Final[dict[type[InvalidRequestError], int]] = {
    IdempotencyKeyReusedError: 422,
    InputFileRemovedError: 410,
}


_OPERATOR_STATUSES: Final[dict[type[MillraceError], int]] = {
    InvalidTenantNameError: 400,
    TenantHoursError: 400,
    ReservedSharesError: 400,
    TenantModelError: 400,
    TenantNotFoundError: 404,
    TenantExistsError: 409,
    ZeroRetentionConflictError: 409,
    AliasLoopError: 400,
    AmbiguousVersionError: 400,
    CodeNotAllowedError: 400,
    InvalidKeyError: 400,
    InvalidAdapterError: 400,
    InvalidConfigError: 400,
    InvalidManifestError: 400,
    InvalidModelError: 400,
    InvalidOptionError: 400,
    InvalidSignatureError: 400,
    InvalidWeightsError: 400,
    ModelObjectsMissingError: 400,
    ModelKeyNotFoundError: 404,
    ModelNotFoundError: 404,
    ModelInUseError: 409,
    ModelKeyRevokedError: 409,
    ModelRetiredError: 409,
    ModelVersionConflictError: 409,
    NameTakenError: 409,
    RevisionMismatchError: 412,
}


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of a route with the error envelope. The middleware logs crashes."""
    for kind in (ApiError, MillraceError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(Exception, _on_crash)


def as_api_error(error: MillraceError) -> ApiError | None:
    """Return the response to an error of Millrace, or None when it counts as a crash."""
    if isinstance(error, QuotaExceededError):
        # Clients retry a 429 unless this header is set.
        return ApiError(
            429,
            str(error),
            kind="insufficient_quota",
            code=error.code,
            headers={"x-should-retry": "false"},
        )
    if isinstance(error, IdempotencyKeyInFlightError):
        # Clients retry a 409. The saved answer will be available soon.
        return ApiError(409, str(error), code=error.code, headers={"retry-after": "1"})
    if isinstance(error, JobNotEndedError):
        # Clients retry a 409 unless this header is set. The client must act first here.
        return ApiError(409, str(error), code=error.code, headers={"x-should-retry": "false"})
    if isinstance(error, InvalidRequestError):
        missing = (
            UploadedFileNotFoundError
            | JobNotFoundError
            | EndpointNotFoundError
            | DeadLetterNotFoundError
        )
        is_in_path = isinstance(error, missing) and error.param is None
        status = _STATUSES.get(type(error), 404 if is_in_path else 400)
        return ApiError(status, str(error), code=error.code, param=error.param)
    if isinstance(error, ObjectNotFoundError):
        return ApiError(404, "No such file.", code=UploadedFileNotFoundError.code)
    if isinstance(error, DatabaseUnavailableError | ObjectStoreUnavailableError):
        return unavailable(
            "The service is not available at the moment.",
            retry_after_s=2,
            code="service_unavailable",
        )
    if isinstance(error, ObjectStoreFullError):
        return unavailable("The object store is full.", retry_after_s=30, code="storage_full")
    return _operator_error(error)


def _operator_error(error: MillraceError) -> ApiError | None:
    """Return the response to an operator whose change of a tenant or model is refused."""
    status = _OPERATOR_STATUSES.get(type(error))
    if status is None:
        return None
    # Clients retry a 409 unless this header is set.
    headers = {"x-should-retry": "false"} if status == 409 else None
    return ApiError(status, str(error), code=error.code, headers=headers)


async def _on_error(_: Request, error: Exception) -> Response:
    """Answer an error that a route or FastAPI raised."""
    if isinstance(error, MillraceError):
        answer = as_api_error(error)
        if answer is None:
            raise error
        return error_response(answer)
    if isinstance(error, RequestValidationError):  # without the value, which may be private
        invalid = error.errors()[0]
        param = str(invalid["loc"][-1])
        message = f"{param}: {invalid['msg']}."
        return error_response(ApiError(400, message, code="invalid_value", param=param))
    if isinstance(error, HTTPException):
        message = _MESSAGES.get(error.status_code, str(error.detail))
        return error_response(ApiError(error.status_code, message, headers=error.headers))
    assert isinstance(error, ApiError)
    return error_response(error)


async def _on_crash(_: Request, __: Exception) -> Response:
    return internal_error_response()
