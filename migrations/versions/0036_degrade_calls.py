"""Let tenants allow that their calls are degraded under load, and say so on the usage ledger."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

CONSTRAINT = "ck_tenants_degraded_output_tokens_positive"
LEDGER_COMMENT = "what was changed of its calls because of load; NULL: nothing"
COLUMNS = {
    "usage_ledger": LEDGER_COMMENT,
    "billed_calls": "as in usage_ledger",
    "jobs": "of a request: what was changed of it because of load; NULL: nothing",
}


def upgrade() -> None:
    """Apply. Columns that may be NULL rewrite no row.

    Each table is changed in a transaction of its own: writers lock several of them in one, in
    another order, and would deadlock with a revision that holds two.
    """
    if is_new("tenants", "degraded_output_tokens_max"):
        op.add_column(
            "tenants",
            sa.Column(
                "degraded_output_tokens_max",
                sa.Integer(),
                comment="output tokens of its calls while their pool is overloaded; "
                "NULL: as requested",
            ),
        )
        op.add_column(
            "tenants",
            sa.Column(
                "degraded_model",
                sa.Text(),
                comment="model of its calls that their own would refuse for load; "
                "NULL: they are refused",
            ),
        )
        op.create_check_constraint(
            op.f(CONSTRAINT), "tenants", sa.text("degraded_output_tokens_max > 0")
        )
    for table, comment in COLUMNS.items():
        if is_new(table, "degraded"):
            with op.get_context().autocommit_block():
                op.add_column(table, sa.Column("degraded", sa.Text(), comment=comment))


def downgrade() -> None:
    """Undo."""
    for table in reversed(COLUMNS):
        op.drop_column(table, "degraded")
    op.drop_column("tenants", "degraded_model")
    op.drop_column("tenants", "degraded_output_tokens_max")
