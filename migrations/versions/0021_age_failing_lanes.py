"""Know when a lane of webhooks failed last, and list endpoints without passing callbacks.

What a lane failed before counts from its next failure on: nobody knows when the last one was.
"""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import build, is_new

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

COLUMNS = ["tenant_id", "created_at", "id"]


def upgrade() -> None:
    """Apply."""
    if is_new("webhook_lanes", "last_failed_at"):
        op.add_column(
            "webhook_lanes",
            sa.Column(
                "last_failed_at",
                sa.DateTime(timezone=True),
                server_default=sa.text("now()"),
                nullable=False,
            ),
        )
        op.execute("UPDATE webhook_lanes SET last_failed_at = failing_since")
    build("ix_webhook_endpoints_listed", "webhook_endpoints", COLUMNS, "job_id IS NULL")
    with op.get_context().autocommit_block():
        op.drop_index(
            "ix_webhook_endpoints_tenant_id",
            table_name="webhook_endpoints",
            postgresql_concurrently=True,
            if_exists=True,
        )


def downgrade() -> None:
    """Undo."""
    op.create_index("ix_webhook_endpoints_tenant_id", "webhook_endpoints", COLUMNS)
    op.drop_index("ix_webhook_endpoints_listed", table_name="webhook_endpoints")
    op.drop_column("webhook_lanes", "last_failed_at")
