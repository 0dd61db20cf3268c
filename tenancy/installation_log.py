"""The audit log of the installation: operations of operators, with their address and request.

It is one more chain of `tenancy.audit_log`, of the tenant id `INSTALLATION` that no tenant has.
What an operator does to a tenant is in both chains: the tenant's shows that and when it was done,
the installation's also from where.
"""

from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import TENANT, public_id
from tenancy.audit_log import CLI, Action, Details, record_audit_event

INSTALLATION: Final = UUID(int=0)
"""Stands for the installation where a tenant's id is expected."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who acts: an operator key with its request, the command line, or the installation itself."""

    actor: str  # the public id of an operator key, `CLI` or `SYSTEM`
    address: str | None = None  # of the client; None: the address that Postgres sees
    request_id: str | None = None


CLI_OPERATOR: Final = Operator(CLI)
"""An operator who runs a command with access to the database."""


def record_operator_event(
    connection: sa.Connection,
    operator: Operator,
    action: Action,
    subject: str,
    details: Details | None = None,
) -> None:
    """Insert the entry of an operator's operation, as the last statement of its transaction.

    It locks the head of the installation's chain until the commit. A lock taken after it could
    deadlock with another operator's transaction.
    """
    address = operator.address
    if address is None:
        address = connection.scalar(sa.select(sa.func.host(sa.func.inet_client_addr())))
    origin = {"address": address, "request_id": operator.request_id}
    record_audit_event(
        connection,
        tenant_id=INSTALLATION,
        actor=operator.actor,
        action=action,
        subject=subject,
        details={**(details or {}), **origin},
    )


def record_tenant_event(
    connection: sa.Connection,
    operator: Operator,
    tenant_id: UUID,
    action: Action,
    subject: str,
    details: Details | None = None,
) -> None:
    """Insert the entry of an operator's operation on a tenant into both chains."""
    record_audit_event(
        connection,
        tenant_id=tenant_id,
        actor=operator.actor,
        action=action,
        subject=subject,
        details=details,
    )
    of_tenant = {"tenant": public_id(TENANT, tenant_id)}
    record_operator_event(connection, operator, action, subject, {**(details or {}), **of_tenant})
