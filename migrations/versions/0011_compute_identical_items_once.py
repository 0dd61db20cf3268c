"""Let jobs compute identical items once: which items are copies, of which, and what was copied."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "item_copies",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("item_index", sa.Integer(), nullable=False),
        sa.Column(
            "original_index", sa.Integer(), nullable=False, comment="the first item that is equal"
        ),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_item_copies_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "item_index", name=op.f("pk_item_copies")),
        comment="Items that are never executed: they take over the result of an identical one. "
        "Written by intake before the file counts, so those at or above total_count mean nothing "
        "yet",
    )
    op.create_index(
        "ix_item_copies_original", "item_copies", ["job_id", "original_index", "item_index"]
    )
    for table, column in _columns():
        op.add_column(table, column)


def downgrade() -> None:
    """Undo. What was copied stays copied, and nothing says so any more."""
    for table, column in _columns():
        op.drop_column(table, column.name)
    op.drop_table("item_copies")


def _columns() -> tuple[tuple[str, sa.Column[object]], ...]:
    return (
        (
            "jobs",
            sa.Column(
                "deduplicate",
                sa.Boolean(),
                nullable=False,
                server_default="false",
                comment="identical items are computed once",
            ),
        ),
        (
            "job_cursors",
            sa.Column(
                "copy_count",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="items before that are copies: they were never emitted",
            ),
        ),
        (
            "job_counters",
            sa.Column(
                "copied",
                sa.Integer(),
                nullable=False,
                server_default="0",
                comment="of those that ended, copies of another item",
            ),
        ),
        (
            "usage_ledger",
            sa.Column(
                "copied_count",
                sa.BigInteger(),
                nullable=False,
                server_default="0",
                comment="items that took over the result of another one; they cost nothing",
            ),
        ),
        (
            "items",
            sa.Column(
                "copied_from",
                sa.Integer(),
                nullable=True,
                comment="index of the identical item whose result this is",
            ),
        ),
    )
