"""The table of files: uploads and result files."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Table,
    Text,
    Uuid,
    func,
    text,
)

from storage.postgres.metadata import metadata

files: Final = Table(
    "files",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column[str]("purpose", Text, nullable=False),
    Column[str]("filename", Text, nullable=False),
    Column[str]("object_key", Text, nullable=False, unique=True),
    Column[int]("size_bytes", BigInteger, nullable=False),
    Column[str]("sha256", Text, nullable=False),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[datetime]("expires_at", DateTime(timezone=True)),
    Column[datetime]("deleted_at", DateTime(timezone=True)),
    Column[datetime]("removed_at", DateTime(timezone=True), comment="when its object was removed"),
    Index("ix_files_tenant_id_created_at", "tenant_id", "created_at", "id"),  # for older releases
    Index(
        "ix_files_listed",
        "tenant_id",
        "created_at",
        "id",
        postgresql_where=text("deleted_at IS NULL AND removed_at IS NULL"),
    ),
    Index("ix_files_stored", "tenant_id", postgresql_where=text("removed_at IS NULL")),
    Index("ix_files_unremoved", "expires_at", postgresql_where=text("removed_at IS NULL")),
    Index("ix_files_removed", "removed_at", "id", postgresql_where=text("removed_at IS NOT NULL")),
    Index(
        "ix_files_unbounded",
        "created_at",
        postgresql_where=text("expires_at IS NULL AND deleted_at IS NULL"),
    ),
)
