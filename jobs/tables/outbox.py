"""The transactional outbox: records to be sent to the log."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Identity,
    Integer,
    LargeBinary,
    Table,
    Text,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import metadata

outbox: Final = Table(
    "outbox",
    metadata,
    Column[int]("id", BigInteger, Identity(), primary_key=True),
    Column[str]("topic", Text, nullable=False, comment="without the installation's prefix"),
    Column[int]("partition", Integer, nullable=False),
    Column[bytes]("key", LargeBinary),
    Column[object]("headers", JSONB, nullable=False),
    Column[bytes]("value", LargeBinary),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Records committed with their cause; the relay deletes a row once it is on the log",
)
