"""Authentication of requests: at their start, and again while a long one is served."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Concatenate, Final, Generic, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, Request

from api.auth.key_cache import KeyCache, Owner, offered_secret
from api.http.errors import ApiError
from api.http.middleware import count_for_tenant
from api.runtime.api_services import Services, services_of
from api.runtime.database import DatabaseUnavailableError
from core.ids import KEY, public_id
from tenancy.api_keys import Principal, authenticate, is_well_formed
from tenancy.audit_log import Action, Details, key_actor, record_audit_event
from tenancy.operator_keys import is_operator_secret

_INCORRECT: Final = "Incorrect API key provided."


@dataclass(frozen=True, slots=True)
class KeyKind(Generic[Owner]):
    """One of the two kinds of keys, and how it is authenticated."""

    cache: Callable[[Services], KeyCache[Owner]]
    has_format: Callable[[str], bool]
    authenticate: Callable[[sa.Connection, str], Owner | None]
    has_other_format: Callable[[str], bool]  # of the kind that other routes need
    missing: str  # message
    other: str  # message


API_KEYS: Final = KeyKind(
    cache=lambda services: services.keys,
    has_format=is_well_formed,
    authenticate=authenticate,
    has_other_format=is_operator_secret,
    missing="The API key is missing: send 'Authorization: Bearer sk-…'.",
    other="This is an operator key. This route needs the API key of a tenant.",
)


async def authenticate_headers(
    authorization: str | None,
    x_api_key: str | None,
    services: Services,
    *,
    address: str | None = None,
) -> Principal:
    """Return the principal of these headers, which came from `address`.

    Raises ApiError (401, 429), DatabaseUnavailableError. A malformed secret costs no query.
    """
    secret = offered_secret(authorization, x_api_key)
    return await authenticate_secret(API_KEYS, secret, services, address)


async def authenticate_secret(
    kind: KeyKind[Owner], secret: str | None, services: Services, address: str | None
) -> Owner:
    """Return the principal of a secret. Raises ApiError (401, 429), DatabaseUnavailableError."""
    keys = kind.cache(services)
    principal = None if secret is None else keys.find(secret)
    if principal is not None:
        return principal
    failures = services.failed_attempts
    failures.check(address, secret)

    def refusal(reason: str, message: str = _INCORRECT) -> ApiError:
        failures.add(address, secret, reason)
        headers = {"www-authenticate": "Bearer"}
        return ApiError(401, message, code="invalid_api_key", headers=headers)

    if secret is None:
        raise refusal("missing", kind.missing)
    if kind.has_other_format(secret):
        raise refusal("other_kind", kind.other)
    if not kind.has_format(secret):
        raise refusal("malformed")
    queried_s = keys.now_s()  # before the query: a revocation meanwhile must take effect
    principal = await services.database.run_across_tenants(kind.authenticate, secret)
    if principal is None:
        raise refusal("unknown")
    keys.remember(secret, principal, queried_s)
    failures.add_success(secret)
    return principal


def client_address(request: Request) -> str | None:
    """Return the address of the connection's other end; None for a Unix socket."""
    return None if request.client is None else request.client.host


INTERVAL_S: Final = 2.0
"""Time between two checks: revoking a key ends the requests that use it."""

_OUTAGE_INTERVAL_S: Final = 30.0  # after Postgres did not answer, which may have taken seconds


class KeyRevalidator:
    """Revalidates the key of one request."""

    def __init__(self, request: Request, services: Services) -> None:
        """The key of `request` was valid just now."""
        self._headers, self._services = request.headers, services
        self._address = client_address(request)
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
        await authenticate_headers(bearer, x_api_key, self._services, address=self._address)
        self._due_s = self._services.keys.now_s() + INTERVAL_S


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TenantRequest:
    """A request with the principal of its API key. Routes get it as `TenantRequestDep`."""

    http: Request
    principal: Principal
    services: Services

    @property
    def tenant_id(self) -> UUID:
        """The tenant that owns the API key."""
        return self.principal.tenant_id

    async def run(
        self,
        work: Callable[Concatenate[sa.Connection, UUID, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Return what `work(connection, tenant_id, …)` returns in a transaction of the tenant.

        See `Database.run_for_tenant`. Raises DatabaseUnavailableError.
        """
        tenant_id = self.principal.tenant_id
        return await self.services.database.run_for_tenant(
            tenant_id, work, tenant_id, *args, **kwargs
        )

    def record_audit_entry(
        self,
        connection: sa.Connection,
        action: Action,
        subject: str,
        details: Details | None = None,
    ) -> None:
        """Add an entry to the audit log, in the transaction of the action.

        It must be the last lock of the transaction (see `record_audit_event`).
        """
        record_audit_event(
            connection,
            tenant_id=self.principal.tenant_id,
            actor=key_actor(self.principal.key_id),
            action=action,
            subject=subject,
            details=details,
        )


async def authenticate_request(request: Request) -> TenantRequest:
    """Authenticate a request, and count it for its tenant.

    Raises ApiError: 401, 429; DatabaseUnavailableError.
    """
    services = services_of(request)
    principal = await authenticate_headers(
        request.headers.get("authorization"),
        request.headers.get("x-api-key"),
        services,
        address=client_address(request),
    )
    count_for_tenant(request.scope, principal.tenant_id, public_id(KEY, principal.key_id))
    return TenantRequest(request, principal, services)


TenantRequestDep = Annotated[TenantRequest, Depends(authenticate_request)]
