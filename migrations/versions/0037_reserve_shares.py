"""Give each tenant reserved shares of pools and a priority class."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

from migrations.indexes import is_new

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None

_CONSTRAINTS = {
    "ck_tenants_reserved_shares_by_pool": "jsonb_typeof(reserved_shares) = 'object'",
    "ck_tenants_priority_class_known": "priority_class IN ('high', 'normal', 'low')",
}


def upgrade() -> None:
    """Apply. Constant defaults rewrite no row."""
    if is_new("tenants", "reserved_shares"):
        op.add_column(
            "tenants",
            sa.Column(
                "reserved_shares",
                postgresql.JSONB(),
                server_default="{}",
                nullable=False,
                comment="by pool the fraction that it gets at least while it has work; "
                "*: of every other",
            ),
        )
        op.add_column(
            "tenants",
            sa.Column(
                "priority_class",
                sa.Text(),
                server_default="normal",
                nullable=False,
                comment="core.tenant_claims.PriorityClass",
            ),
        )
        for name, condition in _CONSTRAINTS.items():
            op.create_check_constraint(op.f(name), "tenants", sa.text(condition))


def downgrade() -> None:
    """Undo."""
    op.drop_column("tenants", "priority_class")
    op.drop_column("tenants", "reserved_shares")
