"""Tables of jobs, and of their leases, cursors and counters: separate rows with one writer each."""

from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from jobs.tables.columns import changed_xid, count, flag, integer, partial_index, text, timestamp
from storage.postgres.metadata import metadata

_UNFINISHED: Final = "state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"

jobs: Final = sa.Table(
    "jobs",
    metadata,
    sa.Column[object]("id", sa.Uuid, primary_key=True),
    sa.Column[object]("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    text("kind", default="batch", comment="batch, or request: one item that came by itself"),
    text(
        "job_class",
        default="bulk",
        comment="names the topics requests.<class> and batches.<pool>.<class>",
    ),
    text("state", default="validating"),
    sa.Column[str](
        "close_reason", sa.Text, comment="why no more results count; the first one wins"
    ),
    text("endpoint"),
    sa.Column[object]("input_file_id", sa.ForeignKey("files.id")),
    text("input_key", comment="object key, pinned until terminal"),
    integer("input_bytes", sa.BigInteger),
    text("completion_window"),
    sa.Column[object]("metadata", JSONB),
    sa.Column[int]("output_expires_after_s", sa.Integer),
    text("traceparent", default=""),
    # Control state, changed by the owner while the job runs.
    integer(
        "priority",
        sa.SmallInteger,
        default="5",
        comment="0 to 9, among the jobs of its tenant; the highest first",
    ),
    timestamp("paused_at", comment="NULL: not paused"),
    timestamp("not_before", comment="no item is emitted before; NULL: at once"),
    sa.Column[str](
        "bulk_hours",
        sa.Text,
        comment="when its items may be emitted, within the hours of its tenant; NULL: at any time",
    ),
    timestamp(
        "quarantined_until",
        comment="its tenant is in quarantine on its pool; NULL: its items may run",
    ),
    count("control_version", comment="grows with each change of what its owner controls"),
    count(
        "void_below",
        comment="its records on the log from before this control version count as lost",
    ),
    flag("sealed", "true", comment="takes no more files"),
    flag(
        "total_final", "true", comment="sealed, and every file has its verdict: total_count stays"
    ),
    sa.Column[int]("max_failed_items", sa.Integer, comment="more close the job"),
    sa.Column[float](
        "max_failed_ratio", sa.Double, comment="of the items that ran; more closes the job"
    ),
    sa.Column[int](
        "failed_ratio_sample", sa.Integer, comment="items that ran before the ratio counts"
    ),
    sa.Column[int]("max_total_tokens", sa.BigInteger, comment="as many close the job"),
    flag("deduplicate", "false", comment="identical items are computed once"),
    flag(
        "expected_late",
        "false",
        comment="after validation it was not expected to meet its deadline",
    ),
    flag(
        "zero_retention",
        "false",
        comment="as its tenant was: bodies in rows and records are encrypted under its own key",
    ),
    sa.Column[str](
        "degraded",
        sa.Text,
        comment="of a request: what was changed of it because of load; NULL: nothing",
    ),
    # Set once by intake, with the verdict.
    sa.Column[str]("model", sa.Text),
    sa.Column[str]("model_version", sa.Text),
    sa.Column[str]("pool", sa.Text),
    sa.Column[object](
        "models",
        JSONB,
        comment="of a file with several models or an adapter: version and base version by name",
    ),
    sa.Column[int]("total_count", sa.Integer, comment="items; NULL until the file was validated"),
    sa.Column[str](
        "order_key",
        sa.Text,
        comment="object key of the order of its first file; NULL: that of the file",
    ),
    sa.Column[int](
        "order_saved_tokens",
        sa.BigInteger,
        comment="prompt tokens that this order is expected to save; NULL: no order",
    ),
    sa.Column[int](
        "estimated_prompt_tokens",
        sa.BigInteger,
        comment="of all items; NULL: not estimated, as in an older release",
    ),
    sa.Column[int](
        "estimated_output_tokens",
        sa.BigInteger,
        comment="of all items, expected; NULL: not estimated, as in an older release",
    ),
    sa.Column[str](
        "validating_pool",
        sa.Text,
        comment="that of its first request, while its first file is validated; NULL: not known",
    ),
    sa.Column[object]("errors", JSONB, comment="first validation errors, as shown"),
    count("error_count"),
    # Set once by the finaliser, in the terminal transaction.
    sa.Column[object]("output_file_id", sa.ForeignKey("files.id")),
    sa.Column[object]("error_file_id", sa.ForeignKey("files.id")),
    timestamp("created_at", has_default=True),
    sa.Column[datetime]("expires_at", sa.DateTime(timezone=True), nullable=False),
    timestamp("in_progress_at"),
    timestamp("settled_at", comment="when the last item got its row"),
    timestamp("finalizing_at"),
    timestamp("completed_at"),
    timestamp("failed_at"),
    timestamp("expired_at"),
    timestamp("cancelling_at"),
    timestamp("cancelled_at"),
    # Set by a deletion or by retention; the row stays for a while as a tombstone.
    timestamp("deleted_at", comment="nothing of it shows from then on"),
    timestamp(
        "removal_due_at",
        comment="when its rows and objects go; NULL: not deleted, or they are gone",
    ),
    changed_xid(),
    partial_index("ix_jobs_kept", "kind", "created_at", where="deleted_at IS NULL"),
    partial_index("ix_jobs_removal_due_at", "removal_due_at", where="removal_due_at IS NOT NULL"),
    partial_index(
        "ix_jobs_tombstones",
        "deleted_at",
        where="deleted_at IS NOT NULL AND removal_due_at IS NULL",
    ),
    partial_index(
        "ix_jobs_zero_retention", "created_at", where="zero_retention AND deleted_at IS NULL"
    ),
    partial_index("ix_jobs_input_file_id", "input_file_id", where="input_file_id IS NOT NULL"),
    partial_index("ix_jobs_output_file_id", "output_file_id", where="output_file_id IS NOT NULL"),
    partial_index("ix_jobs_error_file_id", "error_file_id", where="error_file_id IS NOT NULL"),
    partial_index(
        "ix_jobs_listed",
        "tenant_id",
        "created_at",
        "id",
        where="kind = 'batch' AND deleted_at IS NULL",
    ),
    partial_index("ix_jobs_unfinished", "created_at", where=_UNFINISHED),
    partial_index("ix_jobs_open_batches", "tenant_id", where=f"kind = 'batch' AND {_UNFINISHED}"),
    partial_index("ix_jobs_voided", "id", where="void_below > 0 AND state = 'in_progress'"),
    partial_index(
        "ix_jobs_quarantined", "id", where="quarantined_until IS NOT NULL AND state = 'in_progress'"
    ),
    partial_index("ix_jobs_reading", "input_file_id", where=_UNFINISHED),
    partial_index(
        "ix_jobs_expiring",
        "expires_at",
        where="state = 'in_progress' AND settled_at IS NULL AND close_reason IS NULL",
    ),
    partial_index(
        "ix_jobs_closing",
        "id",
        where="state IN ('in_progress', 'cancelling') AND settled_at IS NULL"
        " AND close_reason IS NOT NULL",
    ),
    partial_index(
        "ix_jobs_open_requests",
        "pool",
        "created_at",
        "id",
        where="kind = 'request' AND state = 'in_progress' AND settled_at IS NULL"
        " AND close_reason IS NULL",
    ),
    partial_index(
        "ix_jobs_unvalidated",
        "created_at",
        where="kind = 'batch' AND state IN ('validating', 'cancelling') AND total_count IS NULL",
    ),
)


job_leases: Final = sa.Table(
    "job_leases",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column[str]("role", sa.Text, primary_key=True, comment="intake or finaliser"),
    text("holder"),
    integer("epoch", sa.BigInteger, comment="grows with each new holder"),
    sa.Column[datetime]("expires_at", sa.DateTime(timezone=True), nullable=False),
    sa.Index("ix_job_leases_role_expires_at", "role", "expires_at"),
)

job_cursors: Final = sa.Table(
    "job_cursors",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    count("byte_offset", sa.BigInteger),
    count("line_number"),
    count("item_index"),
    timestamp("repaired_at", comment="last emission of lost items again"),
    count("repair_count", comment="emissions of lost items again since an item got its row"),
    count("void_below", comment="what jobs.void_below made void up to here is on the log again"),
    count("fence", comment="records of a lower control version do not move it"),
    count("copy_count", comment="items before that are copies: they were never emitted"),
    changed_xid(),
    comment="How far intake has expanded the input file; everything before was acknowledged",
)

job_counters: Final = sa.Table(
    "job_counters",
    metadata,
    sa.Column[object]("job_id", sa.ForeignKey("jobs.id"), primary_key=True),
    count("succeeded"),
    count("failed"),
    count("cancelled"),
    count("expired"),
    count("input_tokens", sa.BigInteger),
    count("output_tokens", sa.BigInteger),
    count("cached_tokens", sa.BigInteger),
    count("reasoning_tokens", sa.BigInteger),
    count("copied", comment="of those that ended, copies of another item"),
    sa.Column[str](
        "closed_reason", sa.Text, comment="set when the close record was read from the log"
    ),
    timestamp("updated_at", has_default=True),
    changed_xid(),
    comment="Written by the results writer alone, in the transaction that inserts the item rows",
)
