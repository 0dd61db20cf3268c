"""The table of idempotency keys and their answers."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    Column,
    DateTime,
    ForeignKey,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import metadata

idempotency_keys: Final = Table(
    "idempotency_keys",
    metadata,
    Column[object]("tenant_id", ForeignKey("tenants.id"), primary_key=True),
    Column[str]("scope", Text, primary_key=True, comment="client, or retry: derived by us"),
    Column[str]("key", Text, primary_key=True),
    Column[str]("route", Text, nullable=False, comment="method and path"),
    Column[bytes]("body_sha256", LargeBinary, comment="NULL: still being read"),
    Column[str]("state", Text, nullable=False, comment="in_flight or saved"),
    Column[object]("holder", Uuid, nullable=False, comment="the call that may save it"),
    Column[int](
        "attempt",
        SmallInteger,
        nullable=False,
        server_default="0",
        comment="tries that its client had made before",
    ),
    Column[datetime](
        "in_flight_until",
        DateTime(timezone=True),
        nullable=False,
        comment="then an unsaved key is free again",
    ),
    Column[object]("job_id", Uuid, comment="whose answer this is, if not saved"),
    Column[int]("status_code", SmallInteger),
    Column[object]("headers", JSONB),
    Column[bytes]("body", LargeBinary),
    Column[str]("body_key", Text, comment="object of a large body"),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False, index=True),
    comment="What was answered to a POST with this key; replayed until it expires",
)
