"""Let operators delete tenants: the row stays, unnamed, while anything of the tenant does."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "tenants",
        sa.Column(
            "deleted_at",
            sa.DateTime(timezone=True),
            comment="nothing of it shows from then on, and all its data is being removed",
        ),
    )
    op.add_column(
        "tenants",
        sa.Column(
            "erased_at",
            sa.DateTime(timezone=True),
            comment="when nothing but tombstones was left; the row goes with the last of them",
        ),
    )


def downgrade() -> None:
    """Undo. Deleted tenants stay, without keys."""
    op.drop_column("tenants", "erased_at")
    op.drop_column("tenants", "deleted_at")
