"""Keep the order in which items got their rows; find the ledger rows of a job."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_ORDER_SO_FAR = """
INSERT INTO job_slices (job_id, first_sequence, item_indexes)
SELECT items.job_id, 0, array_agg(items.item_index ORDER BY items.finished_at, items.item_index)
FROM items JOIN jobs ON jobs.id = items.job_id AND jobs.kind = 'batch'
GROUP BY items.job_id
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "job_slices",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column(
            "first_sequence",
            sa.Integer(),
            nullable=False,
            comment="items that had their row before",
        ),
        sa.Column(
            "item_indexes",
            sa.ARRAY(sa.Integer()),
            nullable=False,
            comment="in the order of their sequence",
        ),
        sa.PrimaryKeyConstraint("job_id", "first_sequence", name=op.f("pk_job_slices")),
        comment="The order in which items of batches got their rows: one row per job and commit "
        "of the results writer",
    )
    op.execute(_ORDER_SO_FAR)
    op.create_index("ix_usage_ledger_job_id", "usage_ledger", ["job_id"])


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_usage_ledger_job_id", table_name="usage_ledger")
    op.drop_table("job_slices")
