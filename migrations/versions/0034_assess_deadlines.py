"""Let tenants choose what happens to jobs that cannot meet their deadline."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

CONSTRAINT = "ck_tenants_infeasible_jobs_known"


def upgrade() -> None:
    """Apply. Constant defaults rewrite no row."""
    if is_new("jobs", "expected_late"):
        op.add_column(
            "jobs",
            sa.Column(
                "expected_late",
                sa.Boolean(),
                server_default=sa.text("false"),
                nullable=False,
                comment="after validation it was not expected to meet its deadline",
            ),
        )
    if is_new("tenants", "infeasible_jobs"):
        op.add_column(
            "tenants",
            sa.Column(
                "infeasible_jobs",
                sa.Text(),
                server_default="accept",
                nullable=False,
                comment="what happens to valid jobs that cannot meet their deadline: "
                "accept, mark or fail",
            ),
        )
        op.create_check_constraint(
            op.f(CONSTRAINT), "tenants", sa.text("infeasible_jobs IN ('accept', 'mark', 'fail')")
        )


def downgrade() -> None:
    """Undo."""
    op.drop_column("tenants", "infeasible_jobs")
    op.drop_column("jobs", "expected_late")
