"""Let tenants keep nothing but the ledger; a job says whether its bodies are encrypted."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TENANT = "keeps nothing but the ledger: bodies are encrypted, and go soon after the end"
_JOB = "as its tenant was: bodies in rows and records are encrypted under its own key"


def upgrade() -> None:
    """Apply."""
    for table, comment in (("tenants", _TENANT), ("jobs", _JOB)):
        op.add_column(
            table,
            sa.Column(
                "zero_retention",
                sa.Boolean(),
                nullable=False,
                server_default="false",
                comment=comment,
            ),
        )
    op.create_index(
        "ix_jobs_zero_retention",
        "jobs",
        ["created_at"],
        postgresql_where=sa.text("zero_retention AND deleted_at IS NULL"),
    )


def downgrade() -> None:
    """Undo. What is encrypted stays so, and nothing says so any more: delete such jobs before."""
    op.drop_index("ix_jobs_zero_retention", "jobs")
    for table in ("jobs", "tenants"):
        op.drop_column(table, "zero_retention")
