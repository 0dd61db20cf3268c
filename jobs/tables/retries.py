"""Tables of failed attempts, waiting retries, retry budgets, dead letters and copies."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from jobs.tables.columns import integer, text, timestamp
from storage.postgres.metadata import metadata

item_attempts: Final = sa.Table(
    "item_attempts",
    metadata,
    sa.Column[object]("job_id", sa.Uuid, nullable=False),
    integer("item_index"),
    integer("attempt", sa.SmallInteger),
    integer("status_code", sa.SmallInteger, comment="0: no answer"),
    text("code", comment="stable error code"),
    timestamp("failed_at", has_default=True),
    sa.PrimaryKeyConstraint("job_id", "item_index", "attempt"),
    comment="Executions that failed in a way that may pass; written by the results writer alone",
)

item_retries: Final = sa.Table(
    "item_retries",
    metadata,
    sa.Column[object]("job_id", sa.Uuid, nullable=False),
    integer("item_index"),
    integer("attempt", sa.SmallInteger, comment="the one to be emitted"),
    sa.Column[datetime]("due_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column[int]("line_offset", sa.BigInteger, comment="in the input file; NULL: not known"),
    sa.PrimaryKeyConstraint("job_id", "item_index", "attempt"),
    sa.Index("ix_item_retries_job_id_due_at", "job_id", "due_at"),
    comment="Items that wait for their next attempt; intake deletes a row once it is on the log",
)

retry_budgets: Final = sa.Table(
    "retry_budgets",
    metadata,
    sa.Column[str]("pool", sa.Text, primary_key=True),
    sa.Column[float](
        "tokens", sa.Double, nullable=False, comment="retries that may be emitted now"
    ),
    timestamp("filled_at", has_default=True),
    comment="A token bucket per pool, of all intake processes together",
)

dead_items: Final = sa.Table(
    "dead_items",
    metadata,
    sa.Column[object]("job_id", sa.Uuid, nullable=False),
    integer("item_index"),
    sa.Column[object]("tenant_id", sa.Uuid, nullable=False),
    integer("job_day", comment="names the partition of its item row"),
    integer("attempt", sa.SmallInteger, comment="the last one"),
    sa.Column[int]("line_offset", sa.BigInteger, comment="in the input file; NULL: not known"),
    timestamp("failed_at", has_default=True),
    sa.Column[object]("redriven_job_id", sa.Uuid, comment="the newest job that took it up again"),
    sa.PrimaryKeyConstraint("job_id", "item_index"),
    sa.Index("ix_dead_items_tenant_id_failed_at", "tenant_id", "failed_at", "job_id", "item_index"),
    comment="Items of batches that failed for good, beside their rows in items",
)


item_copies: Final = sa.Table(
    "item_copies",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    integer("item_index"),
    integer("original_index", comment="the first item that is equal"),
    text("custom_id"),
    sa.PrimaryKeyConstraint("job_id", "item_index"),
    sa.Index("ix_item_copies_original", "job_id", "original_index", "item_index"),
    comment="Items that are never executed: they take over the result of an identical one. "
    "Written by intake before the file counts, so those at or above total_count mean nothing yet",
)
