"""Remember which connection-bound calls are on the ledger, so that each is billed once."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "billed_calls",
        sa.Column("request_id", sa.Uuid(), nullable=False, comment="as `x-request-id`"),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("model_version", sa.Text(), nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=False, comment="core.outcomes.Outcome"),
        sa.Column("input_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("reasoning_tokens", sa.Integer(), nullable=False),
        sa.Column(
            "billed_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
        ),
        sa.PrimaryKeyConstraint("request_id", name=op.f("pk_billed_calls")),
        comment="So that no report of a call is billed twice; "
        "forgotten when the log has forgotten it",
    )
    op.create_index("ix_billed_calls_billed_at", "billed_calls", ["billed_at"])


def downgrade() -> None:
    """Undo."""
    op.drop_table("billed_calls")
