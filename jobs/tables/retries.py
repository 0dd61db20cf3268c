"""Tables of failed attempts, waiting retries, retry budgets, dead letters and copies."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
)

from storage.postgres.metadata import metadata

item_attempts: Final = Table(
    "item_attempts",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int]("item_index", Integer, nullable=False),
    Column[int]("attempt", SmallInteger, nullable=False),
    Column[int]("status_code", SmallInteger, nullable=False, comment="0: no answer"),
    Column[str]("code", Text, nullable=False, comment="stable error code"),
    Column[datetime](
        "failed_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    PrimaryKeyConstraint("job_id", "item_index", "attempt"),
    comment="Executions that failed in a way that may pass; written by the results writer alone",
)

item_retries: Final = Table(
    "item_retries",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int]("item_index", Integer, nullable=False),
    Column[int]("attempt", SmallInteger, nullable=False, comment="the one to be emitted"),
    Column[datetime]("due_at", DateTime(timezone=True), nullable=False),
    Column[int]("line_offset", BigInteger, comment="in the input file; NULL: not known"),
    PrimaryKeyConstraint("job_id", "item_index", "attempt"),
    Index("ix_item_retries_job_id_due_at", "job_id", "due_at"),
    comment="Items that wait for their next attempt; intake deletes a row once it is on the log",
)

retry_budgets: Final = Table(
    "retry_budgets",
    metadata,
    Column[str]("pool", Text, primary_key=True),
    Column[float]("tokens", Double, nullable=False, comment="retries that may be emitted now"),
    Column[datetime](
        "filled_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="A token bucket per pool, of all intake processes together",
)

dead_items: Final = Table(
    "dead_items",
    metadata,
    Column[object]("job_id", Uuid, nullable=False),
    Column[int]("item_index", Integer, nullable=False),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[int]("job_day", Integer, nullable=False, comment="names the partition of its item row"),
    Column[int]("attempt", SmallInteger, nullable=False, comment="the last one"),
    Column[int]("line_offset", BigInteger, comment="in the input file; NULL: not known"),
    Column[datetime](
        "failed_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[object]("redriven_job_id", Uuid, comment="the newest job that took it up again"),
    PrimaryKeyConstraint("job_id", "item_index"),
    Index(
        "ix_dead_items_tenant_id_failed_at",
        "tenant_id",
        "failed_at",
        "job_id",
        "item_index",
    ),
    comment="Items of batches that failed for good, beside their rows in items",
)


item_copies: Final = Table(
    "item_copies",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column[int]("item_index", Integer, nullable=False),
    Column[int]("original_index", Integer, nullable=False, comment="the first item that is equal"),
    Column[str]("custom_id", Text, nullable=False),
    PrimaryKeyConstraint("job_id", "item_index"),
    Index("ix_item_copies_original", "job_id", "original_index", "item_index"),
    comment="Items that are never executed: they take over the result of an identical one. "
    "Written by intake before the file counts, so those at or above total_count mean nothing yet",
)
