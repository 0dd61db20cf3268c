"""Name the order in which the items of a file are emitted."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

KEY_COMMENTS = {
    "jobs": "object key of the order of its first file; NULL: that of the file",
    "job_inputs": "of the file, as in jobs",
}
TOKEN_COMMENTS = {
    "jobs": "prompt tokens that this order is expected to save; NULL: no order",
    "job_inputs": "as in jobs",
}


def upgrade() -> None:
    """Apply. Columns without a default rewrite no row."""
    for table, comment in KEY_COMMENTS.items():
        if is_new(table, "order_key"):
            op.add_column(table, sa.Column("order_key", sa.Text(), comment=comment))
    for table, comment in TOKEN_COMMENTS.items():
        if is_new(table, "order_saved_tokens"):
            op.add_column(table, sa.Column("order_saved_tokens", sa.BigInteger(), comment=comment))


def downgrade() -> None:
    """Undo. Ordered jobs must have ended: without the columns their cursors are misread."""
    for table in KEY_COMMENTS:
        op.drop_column(table, "order_saved_tokens")
        op.drop_column(table, "order_key")
