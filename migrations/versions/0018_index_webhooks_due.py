"""Find the lanes of webhooks by what is due, not by what waits.

What waits already counts as due until it is tried: its lane is looked at in vain, as before.
"""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import build, is_new

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

# By name: columns and condition.
INDEXES = {
    "ix_webhook_deliveries_due": (["lane", "next_try_at"], "state = 'pending' AND is_due"),
    "ix_webhook_deliveries_waiting": (["next_try_at"], "state = 'pending' AND NOT is_due"),
}


def upgrade() -> None:
    """Apply."""
    if is_new("webhook_deliveries", "is_due"):
        op.add_column(
            "webhook_deliveries",
            sa.Column(
                "is_due",
                sa.Boolean(),
                server_default=sa.text("true"),
                nullable=False,
                comment="a claim finds its lane; false: not before next_try_at",
            ),
        )
    for name, (columns, condition) in INDEXES.items():
        build(name, "webhook_deliveries", columns, condition)


def downgrade() -> None:
    """Undo."""
    for name in INDEXES:
        op.drop_index(name, table_name="webhook_deliveries")
    op.drop_column("webhook_deliveries", "is_due")
