"""All tables, registered by import: the schema that the revisions must produce."""

from typing import Final

import sqlalchemy as sa

from jobs.tables import files, idempotency, jobs, quarantines, retries
from jobs.tables import jobs as jobs_tables
from registry import tables as registry_tables
from results import tables as results_tables
from results.webhooks import tables as webhooks_tables
from storage.postgres import items, outbox, watermark_row
from storage.postgres.metadata import metadata
from tenancy import deletions, tables
from tenancy import tables as tenancy_tables

assert all(  # a use of each import, so that linters keep them
    (
        tables,
        retries,
        deletions,
        files,
        idempotency,
        items,
        watermark_row,
        files,
        jobs_tables,
        outbox,
        jobs,
        quarantines,
        registry_tables,
        results_tables,
        retries,
        tenancy_tables,
        webhooks_tables,
    )
)

SCHEMA: Final[sa.MetaData] = metadata
