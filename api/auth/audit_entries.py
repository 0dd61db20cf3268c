"""Audit log entries for actions with an API key, written in the transaction of the action."""

import sqlalchemy as sa

from tenancy.api_keys import Principal
from tenancy.audit_log import Action, AuditEvent, Details, key_actor, record_audit_event


def record_audit_entry(
    connection: sa.Connection,
    principal: Principal,
    action: Action,
    subject: str,
    details: Details | None = None,
) -> None:
    """Add an entry. It must be the last lock of the transaction (see `record_audit_event`)."""
    act = AuditEvent(
        tenant_id=principal.tenant_id,
        actor=key_actor(principal.key_id),
        action=action,
        subject=subject,
        details=details or {},
    )
    record_audit_event(connection, act)
