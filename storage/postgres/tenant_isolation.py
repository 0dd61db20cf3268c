"""Restricts a transaction to the rows of one tenant, as a second line of defence.

Row-level security policies, which a schema revision creates, apply to one role. A transaction sets
that role, and Postgres resets it when the transaction ends.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

TENANT_ROLE: Final = "millrace_tenant"
"""Owns nothing, cannot log in, and has the privileges that the API needs for a tenant."""

# One statement, one round trip. `jit` off: the policies' subqueries raise the estimated cost, and
# compiling takes longer than the statements themselves.
_SET_TENANT: Final = sa.text(
    "SELECT set_config('millrace.tenant_id', :tenant_id, true), "
    f"set_config('jit', 'off', true), set_config('role', '{TENANT_ROLE}', true)"
)


def restrict_to_tenant(connection: sa.Connection, tenant_id: UUID) -> None:
    """Restrict the rest of the transaction of `connection` to this tenant's rows.

    Rows of other tenants are invisible to every statement; inserting one, or assigning a row to
    another tenant, fails. Raises one of DATABASE_UNAVAILABLE.
    """
    connection.execute(_SET_TENANT, {"tenant_id": str(tenant_id)})
