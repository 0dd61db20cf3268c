"""Changes of a tenant's limits by operators, several at once."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from tenancy.installation_log import CLI_OPERATOR, Operator
from tenancy.reserved_shares import check_reserved_shares
from tenancy.response_cache import set_response_cache
from tenancy.tenants import (
    change_tenant,
    check_bulk_hours,
    check_degraded_model,
    set_zero_retention,
)

_COLUMNS: Final = (
    "stored_bytes_max",
    "call_timeout_ms",
    "weight",
    "reserved_shares",
    "priority_class",
    "bulk_hours",
    "infeasible_jobs",
    "degraded_output_tokens_max",
    "degraded_model",
)


def change_tenant_limits(
    connection: sa.Connection,
    tenant_id: UUID,
    changes: Mapping[str, Any],
    operator: Operator = CLI_OPERATOR,
) -> None:
    """Set the named limits; None is the installation's default, or off.

    Zero retention is set first: it decides whether a cache is possible. Raises
    ZeroRetentionConflictError, TenantHoursError, ReservedSharesError, TenantModelError.
    """
    if (on := changes.get("zero_retention")) is not None:
        set_zero_retention(connection, tenant_id, on=on, operator=operator)
    if (model := changes.get("degraded_model")) is not None:
        check_degraded_model(model)
    if (hours := changes.get("bulk_hours")) is not None:
        check_bulk_hours(hours)
    if (shares := changes.get("reserved_shares")) is not None:
        check_reserved_shares(connection, tenant_id, shares)
    for name in _COLUMNS:
        if name in changes:
            value = {name: changes[name]}
            details = {name: _shown(changes[name])}
            change_tenant(connection, tenant_id, value, details, operator)
    if "response_cache_ttl_s" in changes:
        set_response_cache(connection, tenant_id, changes["response_cache_ttl_s"], operator)


def _shown(value: Any) -> Any:
    """Return a value as the audit log holds it: shares as text, because it holds no fractions."""
    if isinstance(value, Mapping):
        return [f"{pool}={share:g}" for pool, share in sorted(value.items())]
    return value
