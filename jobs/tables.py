"""Tables of files and jobs. Lease, cursor and counters are rows of their own, one writer each."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.metadata import metadata

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
    Index("ix_files_tenant_id_created_at", "tenant_id", "created_at", "id"),
    Index("ix_files_unremoved", "expires_at", postgresql_where=text("removed_at IS NULL")),
    Index("ix_files_removed", "removed_at", "id", postgresql_where=text("removed_at IS NOT NULL")),
    Index(
        "ix_files_unbounded",
        "created_at",
        postgresql_where=text("expires_at IS NULL AND deleted_at IS NULL"),
    ),
)

jobs: Final = Table(
    "jobs",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column[str](
        "kind",
        Text,
        nullable=False,
        server_default="batch",
        comment="batch, or request: one item that came by itself",
    ),
    Column[str](
        "job_class",
        Text,
        nullable=False,
        server_default="bulk",
        comment="names the topics requests.<class> and batches.<pool>.<class>",
    ),
    Column[str]("state", Text, nullable=False, server_default="validating"),
    Column[str]("close_reason", Text, comment="why no more results count; the first one wins"),
    Column[str]("endpoint", Text, nullable=False),
    Column[object]("input_file_id", ForeignKey("files.id")),
    Column[str]("input_key", Text, nullable=False, comment="object key, pinned until terminal"),
    Column[int]("input_bytes", BigInteger, nullable=False),
    Column[str]("completion_window", Text, nullable=False),
    Column[object]("metadata", JSONB),
    Column[int]("output_expires_after_s", Integer),
    Column[str]("traceparent", Text, nullable=False, server_default=""),
    # What its owner controls while it runs.
    Column[int](
        "priority",
        SmallInteger,
        nullable=False,
        server_default="5",
        comment="0 to 9, among the jobs of its tenant; the highest first",
    ),
    Column[datetime]("paused_at", DateTime(timezone=True), comment="NULL: not paused"),
    Column[int](
        "control_version",
        Integer,
        nullable=False,
        server_default="0",
        comment="grows with each change of what its owner controls",
    ),
    Column[int](
        "void_below",
        Integer,
        nullable=False,
        server_default="0",
        comment="its records on the log from before this control version count as lost",
    ),
    Column[bool](
        "sealed", Boolean, nullable=False, server_default="true", comment="takes no more files"
    ),
    Column[bool](
        "total_final",
        Boolean,
        nullable=False,
        server_default="true",
        comment="sealed, and every file has its verdict: total_count stays",
    ),
    Column[int]("max_failed_items", Integer, comment="more close the job"),
    Column[float]("max_failed_ratio", Double, comment="of the items that ran; more closes the job"),
    Column[int]("failed_ratio_sample", Integer, comment="items that ran before the ratio counts"),
    Column[int]("max_total_tokens", BigInteger, comment="as many close the job"),
    Column[bool](
        "deduplicate",
        Boolean,
        nullable=False,
        server_default="false",
        comment="identical items are computed once",
    ),
    Column[bool](
        "zero_retention",
        Boolean,
        nullable=False,
        server_default="false",
        comment="as its tenant was: bodies in rows and records are encrypted under its own key",
    ),
    # Set once by intake, in the transaction that ends validation.
    Column[str]("model", Text),
    Column[str]("model_version", Text),
    Column[str]("pool", Text),
    Column[int]("total_count", Integer, comment="items; NULL until the file was validated"),
    Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    Column[int]("error_count", Integer, nullable=False, server_default="0"),
    # Set once by the finaliser, in the terminal transaction.
    Column[object]("output_file_id", ForeignKey("files.id")),
    Column[object]("error_file_id", ForeignKey("files.id")),
    Column[datetime](
        "created_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False),
    Column[datetime]("in_progress_at", DateTime(timezone=True)),
    Column[datetime](
        "settled_at", DateTime(timezone=True), comment="when the last item got its row"
    ),
    Column[datetime]("finalizing_at", DateTime(timezone=True)),
    Column[datetime]("completed_at", DateTime(timezone=True)),
    Column[datetime]("failed_at", DateTime(timezone=True)),
    Column[datetime]("expired_at", DateTime(timezone=True)),
    Column[datetime]("cancelling_at", DateTime(timezone=True)),
    Column[datetime]("cancelled_at", DateTime(timezone=True)),
    # Set when its owner or its age takes it away; the row stays for a while, as a tombstone.
    Column[datetime](
        "deleted_at", DateTime(timezone=True), comment="nothing of it shows from then on"
    ),
    Column[datetime](
        "removal_due_at",
        DateTime(timezone=True),
        comment="when its rows and objects go; NULL: not deleted, or they are gone",
    ),
    Index(
        "ix_jobs_kept",
        "kind",
        "created_at",
        postgresql_where=text("deleted_at IS NULL"),
    ),
    Index(
        "ix_jobs_removal_due_at",
        "removal_due_at",
        postgresql_where=text("removal_due_at IS NOT NULL"),
    ),
    Index(
        "ix_jobs_tombstones",
        "deleted_at",
        postgresql_where=text("deleted_at IS NOT NULL AND removal_due_at IS NULL"),
    ),
    Index(
        "ix_jobs_zero_retention",
        "created_at",
        postgresql_where=text("zero_retention AND deleted_at IS NULL"),
    ),
    Index(
        "ix_jobs_input_file_id",
        "input_file_id",
        postgresql_where=text("input_file_id IS NOT NULL"),
    ),
    Index(
        "ix_jobs_output_file_id",
        "output_file_id",
        postgresql_where=text("output_file_id IS NOT NULL"),
    ),
    Index(
        "ix_jobs_error_file_id",
        "error_file_id",
        postgresql_where=text("error_file_id IS NOT NULL"),
    ),
    Index(
        "ix_jobs_tenant_id_created_at",
        "tenant_id",
        "created_at",
        "id",
        postgresql_where=text("kind = 'batch'"),
    ),
    Index(
        "ix_jobs_unfinished",
        "created_at",
        postgresql_where=text("state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    ),
    Index(
        "ix_jobs_voided",
        "id",
        postgresql_where=text("void_below > 0 AND state = 'in_progress'"),
    ),
    Index(
        "ix_jobs_reading",
        "input_file_id",
        postgresql_where=text("state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    ),
)

job_leases: Final = Table(
    "job_leases",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[str]("role", Text, primary_key=True, comment="intake or finaliser"),
    Column[str]("holder", Text, nullable=False),
    Column[int]("epoch", BigInteger, nullable=False, comment="grows with each new holder"),
    Column[datetime]("expires_at", DateTime(timezone=True), nullable=False),
)

job_cursors: Final = Table(
    "job_cursors",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[int]("byte_offset", BigInteger, nullable=False, server_default="0"),
    Column[int]("line_number", Integer, nullable=False, server_default="0"),
    Column[int]("item_index", Integer, nullable=False, server_default="0"),
    Column[datetime](
        "repaired_at", DateTime(timezone=True), comment="last emission of lost items again"
    ),
    Column[int](
        "void_below",
        Integer,
        nullable=False,
        server_default="0",
        comment="what jobs.void_below made void up to here is on the log again",
    ),
    Column[int](
        "fence",
        Integer,
        nullable=False,
        server_default="0",
        comment="records of a lower control version do not move it",
    ),
    Column[int](
        "copy_count",
        Integer,
        nullable=False,
        server_default="0",
        comment="items before that are copies: they were never emitted",
    ),
    comment="How far intake has expanded the input file; everything before was acknowledged",
)

job_counters: Final = Table(
    "job_counters",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    Column[int]("succeeded", Integer, nullable=False, server_default="0"),
    Column[int]("failed", Integer, nullable=False, server_default="0"),
    Column[int]("cancelled", Integer, nullable=False, server_default="0"),
    Column[int]("expired", Integer, nullable=False, server_default="0"),
    Column[int]("input_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("output_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("cached_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int]("reasoning_tokens", BigInteger, nullable=False, server_default="0"),
    Column[int](
        "copied",
        Integer,
        nullable=False,
        server_default="0",
        comment="of those that ended, copies of another item",
    ),
    Column[str]("closed_reason", Text, comment="set when the close record was read from the log"),
    Column[datetime](
        "updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Written by the results writer alone, in the transaction that inserts the item rows",
)

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
