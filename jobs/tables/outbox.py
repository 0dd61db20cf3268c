"""The transactional outbox: records to be sent to the log."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from jobs.tables.columns import integer, text, timestamp
from storage.postgres.metadata import metadata

outbox: Final = sa.Table(
    "outbox",
    metadata,
    sa.Column[int]("id", sa.BigInteger, sa.Identity(), primary_key=True),
    text("topic", comment="without the installation's prefix"),
    integer("partition"),
    sa.Column[bytes]("key", sa.LargeBinary),
    sa.Column[object]("headers", JSONB, nullable=False),
    sa.Column[bytes]("value", sa.LargeBinary),
    timestamp("created_at", has_default=True),
    comment="Records committed with their cause; the relay deletes a row once it is on the log",
)
