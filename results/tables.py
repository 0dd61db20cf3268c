"""Tables of billed connection-bound calls and of the leases on sweeps."""

from datetime import datetime
from typing import Final

from sqlalchemy import Column, DateTime, Index, Integer, SmallInteger, Table, Text, Uuid, func

from storage.postgres.metadata import metadata

billed_calls: Final = Table(
    "billed_calls",
    metadata,
    Column[object]("request_id", Uuid, primary_key=True, comment="as `x-request-id`"),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[str]("model", Text, nullable=False),
    Column[str]("model_version", Text, nullable=False),
    Column[int]("outcome", SmallInteger, nullable=False, comment="core.outcomes.Outcome"),
    Column[int]("input_tokens", Integer, nullable=False),
    Column[int]("output_tokens", Integer, nullable=False),
    Column[int]("cached_tokens", Integer, nullable=False),
    Column[int]("reasoning_tokens", Integer, nullable=False),
    Column[datetime](
        "billed_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Index("ix_billed_calls_billed_at", "billed_at"),
    comment="So that no report of a call is billed twice; forgotten when the log has forgotten it",
)

sweep_leases: Final = Table(
    "sweep_leases",
    metadata,
    Column[str]("name", Text, primary_key=True),
    Column[str]("holder", Text, nullable=False),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False),
    comment="Which process does what one process is enough for",
)
