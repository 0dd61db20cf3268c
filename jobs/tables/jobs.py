"""Tables of jobs, and of their leases, cursors and counters: separate rows with one writer each."""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import metadata


def _count(name: str, type_: type[Integer] = Integer, *, comment: str | None = None) -> Column[int]:
    """A number that starts at 0."""
    return Column[int](name, type_, nullable=False, server_default="0", comment=comment)


def _flag(name: str, default: str, *, comment: str) -> Column[bool]:
    """A switch that every row has."""
    return Column[bool](name, Boolean, nullable=False, server_default=default, comment=comment)


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
    # Control state, changed by the owner while the job runs.
    Column[int](
        "priority",
        SmallInteger,
        nullable=False,
        server_default="5",
        comment="0 to 9, among the jobs of its tenant; the highest first",
    ),
    Column[datetime]("paused_at", DateTime(timezone=True), comment="NULL: not paused"),
    _count("control_version", comment="grows with each change of what its owner controls"),
    _count(
        "void_below",
        comment="its records on the log from before this control version count as lost",
    ),
    _flag("sealed", "true", comment="takes no more files"),
    _flag(
        "total_final", "true", comment="sealed, and every file has its verdict: total_count stays"
    ),
    Column[int]("max_failed_items", Integer, comment="more close the job"),
    Column[float]("max_failed_ratio", Double, comment="of the items that ran; more closes the job"),
    Column[int]("failed_ratio_sample", Integer, comment="items that ran before the ratio counts"),
    Column[int]("max_total_tokens", BigInteger, comment="as many close the job"),
    _flag("deduplicate", "false", comment="identical items are computed once"),
    _flag(
        "zero_retention",
        "false",
        comment="as its tenant was: bodies in rows and records are encrypted under its own key",
    ),
    # Set once by intake, with the verdict.
    Column[str]("model", Text),
    Column[str]("model_version", Text),
    Column[str]("pool", Text),
    Column[int]("total_count", Integer, comment="items; NULL until the file was validated"),
    Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    _count("error_count"),
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
    # Set by a deletion or by retention; the row stays for a while as a tombstone.
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
        "ix_jobs_listed",
        "tenant_id",
        "created_at",
        "id",
        postgresql_where=text("kind = 'batch' AND deleted_at IS NULL"),
    ),
    Index(
        "ix_jobs_unfinished",
        "created_at",
        postgresql_where=text("state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    ),
    Index(
        "ix_jobs_open_batches",
        "tenant_id",
        postgresql_where=text(
            "kind = 'batch' AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
        ),
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
    _count("byte_offset", BigInteger),
    _count("line_number"),
    _count("item_index"),
    Column[datetime](
        "repaired_at", DateTime(timezone=True), comment="last emission of lost items again"
    ),
    _count("void_below", comment="what jobs.void_below made void up to here is on the log again"),
    _count("fence", comment="records of a lower control version do not move it"),
    _count("copy_count", comment="items before that are copies: they were never emitted"),
    comment="How far intake has expanded the input file; everything before was acknowledged",
)

job_counters: Final = Table(
    "job_counters",
    metadata,
    Column[object]("job_id", ForeignKey("jobs.id"), primary_key=True),
    _count("succeeded"),
    _count("failed"),
    _count("cancelled"),
    _count("expired"),
    _count("input_tokens", BigInteger),
    _count("output_tokens", BigInteger),
    _count("cached_tokens", BigInteger),
    _count("reasoning_tokens", BigInteger),
    _count("copied", comment="of those that ended, copies of another item"),
    Column[str]("closed_reason", Text, comment="set when the close record was read from the log"),
    Column[datetime](
        "updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()
    ),
    comment="Written by the results writer alone, in the transaction that inserts the item rows",
)
