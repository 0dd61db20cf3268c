"""The second wall between tenants: a transaction that can touch the rows of one tenant alone.

The policies on tables (row-level security) are a revision of the schema. They bind one role, which
a transaction takes and Postgres takes back at its end, however it ends.
"""

from typing import Final
from uuid import UUID

import sqlalchemy as sa

TENANT_ROLE: Final = "millrace_tenant"
"""Owns nothing, cannot log in, and may do on each table what the API does for a tenant."""

# One statement, so one round trip. `jit`: the policies' look-ups make long windows seem costly to
# the planner, and compiling a statement takes longer than these take.
_ENTER: Final = sa.text(
    "SELECT set_config('millrace.tenant_id', :tenant_id, true), "
    f"set_config('jit', 'off', true), set_config('role', '{TENANT_ROLE}', true)"
)


def restrict_to_tenant(connection: sa.Connection, tenant_id: UUID) -> None:
    """Let the rest of the transaction of `connection` see and change this tenant's rows alone.

    Rows of others are as if they were not there, whatever a statement asks for; adding one, or
    handing one over, is refused. Raises one of DATABASE_AWAY.
    """
    connection.execute(_ENTER, {"tenant_id": str(tenant_id)})
