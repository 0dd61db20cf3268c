"""Tables of files, uploads and results, and of those appended to jobs after the first."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

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


job_inputs: Final = Table(
    "job_inputs",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), nullable=False),
    Column[int]("number", SmallInteger, nullable=False, comment="from 1, in the order of appends"),
    Column[object]("file_id", ForeignKey("files.id"), nullable=False),
    Column[str]("object_key", Text, nullable=False, comment="pinned until the job is terminal"),
    Column[int]("size_bytes", BigInteger, nullable=False),
    Column[str](
        "state",
        Text,
        nullable=False,
        server_default="validating",
        comment="validating, accepted, refused, or dropped: its job closed first",
    ),
    Column[int]("first_index", Integer, comment="of its items in the job; set when accepted"),
    Column[int]("item_count", Integer, comment="set when accepted"),
    Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    Column[int]("error_count", Integer, nullable=False, server_default="0"),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    PrimaryKeyConstraint("job_id", "number"),
    Index("ix_job_inputs_file_id", "file_id"),
    Index("ix_job_inputs_validating", "job_id", postgresql_where=text("state = 'validating'")),
    Index(
        "ix_job_inputs_reading",
        "file_id",
        postgresql_where=text("state IN ('validating', 'accepted')"),
    ),
    comment="Files appended to jobs; the items of each follow those of the files before",
)
