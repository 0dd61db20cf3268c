"""Fence cursors: what was sent before a resume emitted everything again moves none of them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "job_cursors",
        sa.Column(
            "fence",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="records of a lower control version do not move it",
        ),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_column("job_cursors", "fence")
