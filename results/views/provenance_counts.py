"""Reads which model versions and engines ran the items of a batch, with the number of items."""

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from storage.postgres.items import job_provenance


@dataclass(frozen=True, slots=True)
class ProvenanceCount:
    """What ran a number of items; copies count with the item whose result they have."""

    model: str  # as the requests name it
    model_version: str
    base_version: str  # empty: it is no adapter
    engine: str  # empty: unknown
    item_count: int


def read_provenance(connection: sa.Connection, job_id: UUID) -> list[ProvenanceCount]:
    """Return what ran items of a job, in the order of its first items."""
    columns = job_provenance.c
    query = (
        sa.select(columns.model, columns.model_version, columns.base_version)
        .add_columns(columns.engine, columns.item_count)
        .where(columns.job_id == job_id)
        .order_by(columns.number)
    )
    return [ProvenanceCount(*row) for row in connection.execute(query)]
