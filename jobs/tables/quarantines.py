"""Tables of the processes that items of a job crashed, and of the tenants that must wait for it."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from jobs.tables.columns import text, timestamp
from storage.postgres.metadata import metadata

job_process_ends: Final = sa.Table(
    "job_process_ends",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    sa.Column[object]("process_id", sa.Uuid, primary_key=True),
    comment="Processes that items of a job crashed; written by the results writer alone",
)

tenant_quarantines: Final = sa.Table(
    "tenant_quarantines",
    metadata,
    sa.Column[object]("id", sa.Uuid, primary_key=True),
    sa.Column[object]("tenant_id", sa.ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False),
    text("pool"),
    sa.Column[object](
        "job_id", sa.Uuid, nullable=False, comment="the last one that exceeded its crash budget"
    ),
    timestamp("began_at", has_default=True),
    sa.Column[datetime]("ends_at", sa.DateTime(timezone=True), nullable=False),
    sa.UniqueConstraint("tenant_id", "pool"),
    comment="Tenants whose bulk jobs wait on a pool; an operator ends one by deleting it",
)
