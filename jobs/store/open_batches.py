"""How many batches of a tenant may be open: intake looks at all of them, again and again."""

from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import OpenBatchLimitError
from jobs.store.files import UNFINISHED
from jobs.tables.jobs import jobs

# Literal, so that Postgres sees that the partial index on open batches fits.
_IS_BATCH: Final = jobs.c.kind == sa.literal_column("'batch'")


def check_open_batch_limit(connection: sa.Connection, tenant_id: UUID, *, open_max: int) -> None:
    """Raise OpenBatchLimitError when a tenant has `open_max` batches that have not ended.

    Single requests do not count: rounds of intake pass them by, and repairs watch the oldest of
    each pool. Nothing is locked, so batches that are created in the same moment may exceed the
    limit by their number.
    """
    if connection.scalar(limit_query(tenant_id, open_max=open_max)) is not None:
        raise OpenBatchLimitError


def limit_query(tenant_id: UUID, *, open_max: int) -> sa.Select[Any]:
    """Return the query of the open batch, in any order, that is the last one allowed."""
    query = sa.select(jobs.c.tenant_id).where(jobs.c.tenant_id == tenant_id, _IS_BATCH, UNFINISHED)
    return query.offset(open_max - 1).limit(1)
