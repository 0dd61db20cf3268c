"""List files and batches without passing those that are gone; their rows stay for a year and more.

The list of files of the release before says less, and still needs the index that it had.
"""

from alembic import op

from migrations.indexes import build, drop

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

COLUMNS = ["tenant_id", "created_at", "id"]


def upgrade() -> None:
    """Apply."""
    build("ix_files_listed", "files", COLUMNS, "deleted_at IS NULL AND removed_at IS NULL")
    build("ix_jobs_listed", "jobs", COLUMNS, "kind = 'batch' AND deleted_at IS NULL")
    drop("ix_jobs_tenant_id_created_at", "jobs")


def downgrade() -> None:
    """Undo."""
    build("ix_jobs_tenant_id_created_at", "jobs", COLUMNS, "kind = 'batch'")
    op.drop_index("ix_jobs_listed", table_name="jobs")
    op.drop_index("ix_files_listed", table_name="files")
