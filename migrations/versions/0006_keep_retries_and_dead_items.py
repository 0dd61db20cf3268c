"""Keep failed attempts, retries that wait, the retry budget of pools, and dead letters."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    _create_attempts()
    op.create_table(
        "item_retries",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("item_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False, comment="the one to be emitted"),
        sa.Column("due_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column(
            "line_offset",
            sa.BigInteger(),
            nullable=True,
            comment="in the input file; NULL: not known",
        ),
        sa.PrimaryKeyConstraint("job_id", "item_index", "attempt", name=op.f("pk_item_retries")),
        comment="Items that wait for their next attempt; intake deletes a row once it is on "
        "the log",
    )
    op.create_index("ix_item_retries_job_id_due_at", "item_retries", ["job_id", "due_at"])
    op.create_table(
        "retry_budgets",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("tokens", sa.Double(), nullable=False, comment="retries that may be emitted now"),
        _moment("filled_at"),
        sa.PrimaryKeyConstraint("pool", name=op.f("pk_retry_budgets")),
        comment="A token bucket per pool, of all intake processes together",
    )
    _create_dead_items()


def downgrade() -> None:
    """Undo."""
    for table in ("dead_items", "retry_budgets", "item_retries", "item_attempts"):
        op.drop_table(table)


def _create_attempts() -> None:
    op.create_table(
        "item_attempts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("item_index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("status_code", sa.SmallInteger(), nullable=False, comment="0: no answer"),
        sa.Column("code", sa.Text(), nullable=False, comment="stable error code"),
        _moment("failed_at"),
        sa.PrimaryKeyConstraint("job_id", "item_index", "attempt", name=op.f("pk_item_attempts")),
        comment="Executions that failed in a way that may pass; written by the results writer "
        "alone",
    )


def _create_dead_items() -> None:
    op.create_table(
        "dead_items",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("item_index", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column(
            "job_day", sa.Integer(), nullable=False, comment="names the partition of its item row"
        ),
        sa.Column("attempt", sa.SmallInteger(), nullable=False, comment="the last one"),
        sa.Column(
            "line_offset",
            sa.BigInteger(),
            nullable=True,
            comment="in the input file; NULL: not known",
        ),
        _moment("failed_at"),
        sa.Column(
            "redriven_job_id",
            sa.Uuid(),
            nullable=True,
            comment="the newest job that took it up again",
        ),
        sa.PrimaryKeyConstraint("job_id", "item_index", name=op.f("pk_dead_items")),
        comment="Items of batches that failed for good, beside their rows in items",
    )
    op.create_index(
        "ix_dead_items_tenant_id_failed_at",
        "dead_items",
        ["tenant_id", "failed_at", "job_id", "item_index"],
    )


def _moment(name: str) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )
