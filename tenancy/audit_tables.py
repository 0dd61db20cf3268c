"""Tables of the audit log. Triggers reject changes of entries and lower head sequences."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Index,
    LargeBinary,
    Table,
    Text,
    Uuid,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import metadata

audit_log: Final = Table(
    "audit_log",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[int]("sequence", BigInteger, nullable=False, comment="in the tenant's chain, from 1"),
    Column[datetime]("created_at", DateTime(timezone=True), nullable=False),
    Column[str]("actor", Text, nullable=False, comment="a key's id, or cli"),
    Column[str]("action", Text, nullable=False, comment="tenancy.audit_log.Action"),
    Column[str]("subject", Text, nullable=False, comment="the id of what it was done to"),
    Column[dict[str, object]]("details", JSONB, nullable=False),
    Column[bytes]("previous_hash", LargeBinary, nullable=False),
    Column[bytes](
        "hash", LargeBinary, nullable=False, comment="SHA-256 over this row and the hash before"
    ),
    Index("uq_audit_log_tenant_id_sequence", "tenant_id", "sequence", unique=True),
    comment="Append-only: what was done, by whom and when; names nothing that a user wrote",
)

audit_heads: Final = Table(
    "audit_heads",
    metadata,
    Column[object]("tenant_id", Uuid, primary_key=True),
    Column[int]("sequence", BigInteger, nullable=False, comment="of the last row; 0: none yet"),
    Column[bytes]("hash", LargeBinary, nullable=False),
    comment="The end of each tenant's chain in audit_log; it only ever moves on by one",
)
