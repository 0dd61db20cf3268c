"""Requests of operators: their authentication, their role, and POSTs that take effect once."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Concatenate, Final, ParamSpec, TypeVar

import sqlalchemy as sa
from fastapi import Depends, Request

from api.auth.authentication import KeyKind, authenticate_secret, client_address
from api.auth.key_cache import offered_secret
from api.http.errors import ApiError
from api.http.middleware import count_for_tenant, request_id_of
from api.http.request_bodies import body_sha256, json_body
from api.idempotent_requests import IdempotencyContext, execute_claimed, idempotency_of_route
from api.runtime.api_services import Services, services_of
from core.ids import OPERATOR_KEY, REQUEST, public_id
from jobs.store.idempotency import StoredAnswer
from tenancy import api_keys
from tenancy.installation_log import INSTALLATION, Operator
from tenancy.operator_keys import (
    OperatorPrincipal,
    OperatorRole,
    authenticate_operator,
    is_operator_secret,
)

P = ParamSpec("P")
T = TypeVar("T")

OPERATOR_KEYS: Final = KeyKind(
    cache=lambda services: services.operator_keys,
    has_format=is_operator_secret,
    authenticate=authenticate_operator,
    has_other_format=api_keys.is_well_formed,
    missing="The operator key is missing: send 'Authorization: Bearer sk-op-…'.",
    other="This is the API key of a tenant. This route needs an operator key.",
)


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request with the principal of its operator key."""

    http: Request
    principal: OperatorPrincipal
    services: Services

    @property
    def operator(self) -> Operator:
        """The operator as the audit log names it."""
        return Operator(
            public_id(OPERATOR_KEY, self.principal.key_id),
            client_address(self.http) or "local",
            public_id(REQUEST, request_id_of(self.http.scope)),
        )

    async def run(
        self, work: Callable[Concatenate[sa.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what `work(connection, …)` returns in a transaction that sees every tenant.

        Raises DatabaseUnavailableError.
        """
        return await self.services.database.run_for_operators(work, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class IdempotentOperatorRequest(OperatorRequest):
    """A POST of an operator, which takes effect once. Its idempotency keys are its key's own."""

    context: IdempotencyContext
    secret: str = field(repr=False)  # of the operator key

    async def json_body(self, shape: type[T]) -> T:
        """Return the body as `shape`. Raises ApiError: 400, 408, 413 or 415."""
        return await json_body(self.http, shape, self.services.settings)

    async def execute_once(
        self, work: Callable[[sa.Connection], object]
    ) -> tuple[StoredAnswer, bool]:
        """Return what `work` returns as JSON and False, or the saved answer to an equal POST.

        See `IdempotentRequest.execute_once`.
        """
        claim = self.context.claim(body_sha256(self.http), self.services.keys.now_s)
        return await execute_claimed(self.run, claim, work)


async def _authenticate(request: Request) -> OperatorRequest:
    """Authenticate an operator. Raises ApiError: 401, 429; DatabaseUnavailableError."""
    services = services_of(request)
    principal = await authenticate_secret(
        OPERATOR_KEYS, _secret(request), services, client_address(request)
    )
    key_id = public_id(OPERATOR_KEY, principal.key_id)
    count_for_tenant(request.scope, INSTALLATION, key_id)  # operators share one half of the slots
    return OperatorRequest(request, principal, services)


OperatorRequestDep = Annotated[OperatorRequest, Depends(_authenticate)]


async def _require_admin(request: OperatorRequestDep) -> OperatorRequest:
    """Refuse a key that may only read. Raises ApiError (403)."""
    if request.principal.role is not OperatorRole.ADMIN:
        message = "This operation needs an operator key with the role admin."
        raise ApiError(403, message, kind="permission_error", code="operator_role")
    return request


AdminRequestDep = Annotated[OperatorRequest, Depends(_require_admin)]


async def _idempotent(request: AdminRequestDep) -> IdempotentOperatorRequest:
    """Read the idempotency headers, before the body is read. Raises ApiError (400)."""
    http, services = request.http, request.services
    context = idempotency_of_route(http, request.principal, services)
    secret = _secret(http)
    assert secret is not None  # it is authenticated
    return IdempotentOperatorRequest(http, request.principal, services, context, secret)


IdempotentAdminDep = Annotated[IdempotentOperatorRequest, Depends(_idempotent)]


def _secret(request: Request) -> str | None:
    return offered_secret(request.headers.get("authorization"), request.headers.get("x-api-key"))
