"""The table of idempotency keys and their answers."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from jobs.tables.columns import count, text, timestamp
from storage.postgres.metadata import metadata

idempotency_keys: Final = sa.Table(
    "idempotency_keys",
    metadata,
    sa.Column[object](
        "tenant_id", sa.Uuid, primary_key=True, comment="or the operator key that asked"
    ),
    sa.Column[str]("scope", sa.Text, primary_key=True, comment="client, or retry: derived by us"),
    sa.Column[str]("key", sa.Text, primary_key=True),
    text("route", comment="method and path"),
    sa.Column[bytes]("body_sha256", sa.LargeBinary, comment="NULL: still being read"),
    text("state", comment="in_flight or saved"),
    sa.Column[object]("holder", sa.Uuid, nullable=False, comment="the call that may save it"),
    count("attempt", sa.SmallInteger, comment="tries that its client had made before"),
    sa.Column[datetime](
        "in_flight_until",
        sa.DateTime(timezone=True),
        nullable=False,
        comment="then an unsaved key is free again",
    ),
    sa.Column[object]("job_id", sa.Uuid, comment="whose answer this is, if not saved"),
    sa.Column[int]("status_code", sa.SmallInteger),
    sa.Column[object]("headers", JSONB),
    sa.Column[bytes]("body", sa.LargeBinary),
    sa.Column[str]("body_key", sa.Text, comment="object of a large body"),
    timestamp("created_at", has_default=True),
    sa.Column[datetime]("expires_at", sa.DateTime(timezone=True), nullable=False, index=True),
    comment="What was answered to a POST with this key; replayed until it expires",
)
