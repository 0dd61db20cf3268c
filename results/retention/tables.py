"""The table of sweep leases: work that one process does for all."""

from datetime import datetime
from typing import Final

from sqlalchemy import Column, DateTime, Table, Text

from storage.postgres.metadata import metadata

sweep_leases: Final = Table(
    "sweep_leases",
    metadata,
    Column[str]("name", Text, primary_key=True),
    Column[str]("holder", Text, nullable=False),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False),
    comment="Which process does what one process is enough for",
)
