"""Let a tenant's online calls have a shorter limit than the installation's."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "tenants",
        sa.Column(
            "call_timeout_ms",
            sa.BigInteger(),
            comment="longest time an online call may take; NULL: the installation's limit",
        ),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_column("tenants", "call_timeout_ms")
