"""Tables of billed connection-bound calls and of the leases on sweeps."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa

from jobs.tables.columns import integer, text, timestamp
from storage.postgres.metadata import metadata

billed_calls: Final = sa.Table(
    "billed_calls",
    metadata,
    integer(
        "request_day",
        default="-1",
        comment="days since 1970-01-01 of its arrival; -1: unknown, by a release before 0027",
    ),
    sa.Column[object]("request_id", sa.Uuid, nullable=False, comment="as `x-request-id`"),
    sa.Column[object]("tenant_id", sa.Uuid, nullable=False),
    text("model"),
    text("model_version"),
    integer("outcome", sa.SmallInteger, comment="core.outcomes.Outcome"),
    integer("input_tokens"),
    integer("output_tokens"),
    integer("cached_tokens"),
    integer("reasoning_tokens"),
    sa.Column[str]("degraded", sa.Text, comment="as in usage_ledger"),
    timestamp("billed_at", has_default=True),
    sa.Index("uq_billed_calls_day", "request_day", "request_id", unique=True),
    sa.Index("ix_billed_calls_billed_at", "billed_at"),
    postgresql_partition_by="RANGE (request_day)",
    comment="So that no report of a call is billed twice; forgotten when the log has forgotten it",
)

sweep_leases: Final = sa.Table(
    "sweep_leases",
    metadata,
    sa.Column[str]("name", sa.Text, primary_key=True),
    text("holder"),
    sa.Column[datetime]("expires_at", sa.DateTime(timezone=True), nullable=False),
    comment="Which process does what one process is enough for",
)
