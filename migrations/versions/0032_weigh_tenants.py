"""Give each tenant a weight: its share of a pool that others use, too."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

CONSTRAINT = "ck_tenants_weight_in_range"


def upgrade() -> None:
    """Apply. A constant default rewrites no row."""
    if is_new("tenants", "weight"):
        op.add_column(
            "tenants",
            sa.Column(
                "weight",
                sa.SmallInteger(),
                server_default="1",
                nullable=False,
                comment="its share of a pool, in relation to those of other tenants",
            ),
        )
        op.create_check_constraint(
            op.f(CONSTRAINT), "tenants", sa.text("weight BETWEEN 1 AND 1000")
        )


def downgrade() -> None:
    """Undo."""
    op.drop_column("tenants", "weight")
