"""Delete jobs and let them age; remember what was deleted; refuse changes of what is append-only.

Indexes on the columns that name files let a file's row go without a look at all jobs.
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations.indexes import build, is_new

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

APPEND_ONLY = ("usage_ledger", "deletions")

REFUSE = """
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME
        USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_append_only';
END $$;
"""

# By table and name: columns and condition.
INDEXES = {
    ("files", "ix_files_removed"): (["removed_at", "id"], "removed_at IS NOT NULL"),
    ("files", "ix_files_unbounded"): (["created_at"], "expires_at IS NULL AND deleted_at IS NULL"),
    ("jobs", "ix_jobs_kept"): (["kind", "created_at"], "deleted_at IS NULL"),
    ("jobs", "ix_jobs_removal_due_at"): (["removal_due_at"], "removal_due_at IS NOT NULL"),
    ("jobs", "ix_jobs_tombstones"): (
        ["deleted_at"],
        "deleted_at IS NOT NULL AND removal_due_at IS NULL",
    ),
    ("jobs", "ix_jobs_input_file_id"): (["input_file_id"], "input_file_id IS NOT NULL"),
    ("jobs", "ix_jobs_output_file_id"): (["output_file_id"], "output_file_id IS NOT NULL"),
    ("jobs", "ix_jobs_error_file_id"): (["error_file_id"], "error_file_id IS NOT NULL"),
    ("job_inputs", "ix_job_inputs_file_id"): (["file_id"], None),
    ("webhook_messages", "ix_webhook_messages_job_id"): (["job_id"], "job_id IS NOT NULL"),
}


def upgrade() -> None:
    """Apply."""
    if is_new("jobs", "deleted_at"):
        _change_tables()
    for (table, name), (columns, condition) in INDEXES.items():
        build(name, table, columns, condition)


def _change_tables() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "deleted_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="nothing of it shows from then on",
        ),
    )
    op.add_column(
        "jobs",
        sa.Column(
            "removal_due_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its rows and objects go; NULL: not deleted, or they are gone",
        ),
    )
    op.create_check_constraint(
        "deleted_when_terminal",
        "jobs",
        "deleted_at IS NULL OR state IN ('completed', 'failed', 'expired', 'cancelled')",
    )
    op.create_check_constraint(
        "removed_when_deleted", "jobs", "removal_due_at IS NULL OR deleted_at IS NOT NULL"
    )
    _create_deletions()
    op.create_table(
        "sweep_leases",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_sweep_leases")),
        comment="Which process does what one process is enough for",
    )
    op.execute(REFUSE)
    for table in APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def downgrade() -> None:
    """Undo."""
    for table in APPEND_ONLY:
        op.execute(f"DROP TRIGGER append_only ON {table}")
    op.execute("DROP FUNCTION refuse_change")
    op.drop_table("sweep_leases")
    op.drop_table("deletions")
    for table, name in INDEXES:
        op.drop_index(name, table_name=table)
    op.drop_constraint(op.f("ck_jobs_removed_when_deleted"), "jobs")
    op.drop_constraint(op.f("ck_jobs_deleted_when_terminal"), "jobs")
    op.drop_column("jobs", "removal_due_at")
    op.drop_column("jobs", "deleted_at")


def _create_deletions() -> None:
    op.create_table(
        "deletions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=False), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False, comment="tenancy.deletions.What"),
        sa.Column(
            "subject_id",
            sa.Uuid(),
            nullable=True,
            comment="of the file or job; NULL: as many as counted",
        ),
        sa.Column(
            "key_id", sa.Uuid(), nullable=True, comment="the API key that asked; NULL: its age did"
        ),
        sa.Column(
            "counts",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="rows and objects by kind",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deletions")),
        comment="Append-only: what was deleted; names nothing that a user wrote",
    )
