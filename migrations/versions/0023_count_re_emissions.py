"""Count how often a job was re-emitted without effect: every intake process backs off together."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "job_cursors",
        sa.Column(
            "repair_count",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="emissions of lost items again since an item got its row",
        ),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_column("job_cursors", "repair_count")
