"""Count a tenant's open batches, and the files that it stores, without looking at its past."""

from alembic import op

from migrations.indexes import build

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

UNFINISHED = "state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"

# By table and name: the condition. All are of `tenant_id`.
INDEXES = {
    ("jobs", "ix_jobs_open_batches"): f"kind = 'batch' AND {UNFINISHED}",
    ("files", "ix_files_stored"): "removed_at IS NULL",
}


def upgrade() -> None:
    """Apply."""
    for (table, name), condition in INDEXES.items():
        build(name, table, ["tenant_id"], condition)


def downgrade() -> None:
    """Undo."""
    for table, name in INDEXES:
        op.drop_index(name, table_name=table)
