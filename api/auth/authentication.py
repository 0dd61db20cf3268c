"""Authentication of requests: at their start, and again while a long one is served."""

from contextlib import suppress
from typing import Final

from fastapi import Request

from api.auth.key_cache import offered_secret
from api.http.errors import ApiError
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from tenancy.api_keys import Principal, authenticate, is_well_formed

_INCORRECT: Final = "Incorrect API key provided."


async def authenticate_headers(
    authorization: str | None, x_api_key: str | None, services: Services
) -> Principal:
    """Return the principal of these headers. Raises ApiError (401), DatabaseUnavailableError.

    A malformed secret costs no query.
    """
    secret = offered_secret(authorization, x_api_key)
    if secret is None:
        raise _unauthorized("The API key is missing: send 'Authorization: Bearer sk-…'.")
    principal = services.keys.find(secret)
    if principal is not None:
        return principal
    if not is_well_formed(secret):
        raise _unauthorized(_INCORRECT)
    queried_s = services.keys.now_s()  # before the query: a revocation meanwhile must take effect
    principal = await services.database.run_across_tenants(authenticate, secret)
    if principal is None:
        raise _unauthorized(_INCORRECT)
    services.keys.remember(secret, principal, queried_s)
    return principal


def _unauthorized(message: str) -> ApiError:
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)


INTERVAL_S: Final = 2.0
"""Time between two checks: revoking a key ends the requests that use it."""

_OUTAGE_INTERVAL_S: Final = 30.0  # after Postgres did not answer, which may have taken seconds


class KeyRevalidator:
    """Revalidates the key of one request."""

    def __init__(self, request: Request, services: Services) -> None:
        """The key of `request` was valid just now."""
        self._headers, self._services = request.headers, services
        self._due_s = services.keys.now_s() + INTERVAL_S

    async def check_if_due(self) -> None:
        """Check the key when the interval has passed. Raises ApiError (401) when it is revoked.

        While Postgres does not answer, the request continues.
        """
        if self._services.keys.now_s() < self._due_s:
            return
        with suppress(DatabaseUnavailableError):
            await self.check_now()

    async def check_now(self) -> None:
        """Check the key at once. Raises ApiError (401), DatabaseUnavailableError."""
        # also when this call is cancelled
        self._due_s = self._services.keys.now_s() + _OUTAGE_INTERVAL_S
        bearer, x_api_key = self._headers.get("authorization"), self._headers.get("x-api-key")
        await authenticate_headers(bearer, x_api_key, self._services)
        self._due_s = self._services.keys.now_s() + INTERVAL_S
