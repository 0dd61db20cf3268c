"""Remember which files lost their object, and find the jobs that still read one."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

UNFINISHED = "state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "files",
        sa.Column(
            "removed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="when its object was removed",
        ),
    )
    op.create_index(
        "ix_files_unremoved",
        "files",
        ["expires_at"],
        postgresql_where=sa.text("removed_at IS NULL"),
    )
    op.create_index(
        "ix_jobs_reading", "jobs", ["input_file_id"], postgresql_where=sa.text(UNFINISHED)
    )


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_jobs_reading", table_name="jobs")
    op.drop_index("ix_files_unremoved", table_name="files")
    op.drop_column("files", "removed_at")
