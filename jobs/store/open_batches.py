"""Limit of open batches per tenant: every round of intake reads all of them."""

from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import OpenBatchLimitError
from jobs.store.files import UNFINISHED
from jobs.tables.jobs import jobs

# Literal, so that Postgres recognises the partial index on open batches.
_IS_BATCH: Final = jobs.c.kind == sa.literal_column("'batch'")


def check_open_batch_limit(connection: sa.Connection, tenant_id: UUID, *, open_max: int) -> None:
    """Raise OpenBatchLimitError if a tenant has `open_max` batches that have not ended.

    Single requests do not count: rounds of intake skip them, and stall recovery watches the oldest
    of each pool. Nothing is locked, so concurrent creations may exceed the limit by their number.
    """
    if connection.scalar(limit_query(tenant_id, open_max=open_max)) is not None:
        raise OpenBatchLimitError


def limit_query(tenant_id: UUID, *, open_max: int) -> sa.Select[Any]:
    """Return the query of one row if the tenant has reached `open_max`, and of none otherwise."""
    query = sa.select(jobs.c.tenant_id).where(jobs.c.tenant_id == tenant_id, _IS_BATCH, UNFINISHED)
    return query.offset(open_max - 1).limit(1)
