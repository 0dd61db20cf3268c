"""An authenticated request to a route, and the database as the request's tenant sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, Request

from api.auth.authentication import authenticate_headers
from api.http.middleware import count_for_tenant
from api.runtime.api_services import Services, services_of
from tenancy.api_keys import Principal
from tenancy.audit_log import Action, AuditEvent, Details, key_actor, record_audit_event

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
        event = AuditEvent(
            tenant_id=self.principal.tenant_id,
            actor=key_actor(self.principal.key_id),
            action=action,
            subject=subject,
            details=details or {},
        )
        record_audit_event(connection, event)


async def authenticate_request(request: Request) -> TenantRequest:
    """Authenticate a request, and count it for its tenant.

    Raises ApiError: 401, 429; DatabaseUnavailableError.
    """
    services = services_of(request)
    principal = await authenticate_headers(
        request.headers.get("authorization"), request.headers.get("x-api-key"), services
    )
    count_for_tenant(request.scope, principal.tenant_id)
    return TenantRequest(request, principal, services)


TenantRequestDep = Annotated[TenantRequest, Depends(authenticate_request)]
