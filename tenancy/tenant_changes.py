"""Changes of a tenant's limits by operators, several at once."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from tenancy.installation_log import CLI_OPERATOR, Operator
from tenancy.response_cache import set_response_cache
from tenancy.tenants import set_call_timeout, set_stored_bytes_max, set_zero_retention

_SETTERS: Final[Mapping[str, Callable[[sa.Connection, UUID, Any, Operator], None]]] = {
    "stored_bytes_max": set_stored_bytes_max,
    "call_timeout_ms": set_call_timeout,
    "response_cache_ttl_s": set_response_cache,
}


def change_tenant_limits(
    connection: sa.Connection,
    tenant_id: UUID,
    changes: Mapping[str, Any],
    operator: Operator = CLI_OPERATOR,
) -> None:
    """Set the named limits; None is the installation's default, or off.

    Zero retention is set first: it decides whether a cache is possible. Raises
    ZeroRetentionConflictError.
    """
    if (on := changes.get("zero_retention")) is not None:
        set_zero_retention(connection, tenant_id, on=on, operator=operator)
    for name, set_limit in _SETTERS.items():
        if name in changes:
            set_limit(connection, tenant_id, changes[name], operator)
