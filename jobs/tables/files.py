"""Tables of files, uploads and results, and of those appended to jobs after the first."""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from jobs.tables.columns import count, integer, partial_index, text, timestamp
from storage.postgres.metadata import metadata

files: Final = sa.Table(
    "files",
    metadata,
    sa.Column[object]("id", sa.Uuid, primary_key=True),
    sa.Column[object]("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    text("purpose"),
    text("filename"),
    sa.Column[str]("object_key", sa.Text, nullable=False, unique=True),
    integer("size_bytes", sa.BigInteger),
    text("sha256"),
    timestamp("created_at", has_default=True),
    timestamp("expires_at"),
    timestamp("deleted_at"),
    timestamp("removed_at", comment="when its object was removed"),
    # For older releases:
    sa.Index("ix_files_tenant_id_created_at", "tenant_id", "created_at", "id"),
    partial_index(
        "ix_files_listed",
        "tenant_id",
        "created_at",
        "id",
        where="deleted_at IS NULL AND removed_at IS NULL",
    ),
    partial_index("ix_files_stored", "tenant_id", where="removed_at IS NULL"),
    partial_index("ix_files_unremoved", "expires_at", where="removed_at IS NULL"),
    partial_index("ix_files_removed", "removed_at", "id", where="removed_at IS NOT NULL"),
    partial_index(
        "ix_files_unbounded", "created_at", where="expires_at IS NULL AND deleted_at IS NULL"
    ),
)


job_inputs: Final = sa.Table(
    "job_inputs",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id"), nullable=False),
    integer("number", sa.SmallInteger, comment="from 1, in the order of appends"),
    sa.Column[object]("file_id", sa.ForeignKey("files.id"), nullable=False),
    text("object_key", comment="pinned until the job is terminal"),
    integer("size_bytes", sa.BigInteger),
    text(
        "state",
        default="validating",
        comment="validating, accepted, refused, or dropped: its job closed first",
    ),
    sa.Column[int]("first_index", sa.Integer, comment="of its items in the job; set when accepted"),
    sa.Column[int]("item_count", sa.Integer, comment="set when accepted"),
    sa.Column[str]("order_key", sa.Text, comment="of the file, as in jobs"),
    sa.Column[int]("order_saved_tokens", sa.BigInteger, comment="as in jobs"),
    sa.Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    count("error_count"),
    timestamp("created_at", has_default=True),
    sa.PrimaryKeyConstraint("job_id", "number"),
    sa.Index("ix_job_inputs_file_id", "file_id"),
    partial_index("ix_job_inputs_validating", "job_id", where="state = 'validating'"),
    partial_index("ix_job_inputs_reading", "file_id", where="state IN ('validating', 'accepted')"),
    comment="Files appended to jobs; the items of each follow those of the files before",
)
