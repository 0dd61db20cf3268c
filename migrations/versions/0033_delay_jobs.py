"""Let jobs begin later, and run in the hours that they or their tenants name."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

COLUMNS = (
    (
        "jobs",
        sa.Column(
            "not_before",
            sa.DateTime(timezone=True),
            comment="no item is emitted before; NULL: at once",
        ),
    ),
    (
        "jobs",
        sa.Column(
            "bulk_hours",
            sa.Text(),
            comment="when its items may be emitted, within the hours of its tenant; "
            "NULL: at any time",
        ),
    ),
    (
        "tenants",
        sa.Column(
            "bulk_hours",
            sa.Text(),
            comment="when items of its bulk jobs may be emitted; NULL: at any time",
        ),
    ),
)


def upgrade() -> None:
    """Apply. Columns without a default rewrite no row."""
    for table, column in COLUMNS:
        if is_new(table, column.name):
            op.add_column(table, column)


def downgrade() -> None:
    """Undo. Jobs that wait begin at once."""
    for table, column in COLUMNS:
        op.drop_column(table, column.name)
