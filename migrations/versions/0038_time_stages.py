"""Keep how long each item spent in the queue, in its batcher, in the engine and until its row."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_COMMENTS = {
    "queue_ms": "on the log until a batcher read it; NULL: unknown, as of an older release",
    "batch_wait_ms": "in the batcher",
    "execution_ms": "in the engine, its queue included",
    "result_ms": "from the end of the execution to this row",
}


def upgrade() -> None:
    """Apply. Columns without a default rewrite no row."""
    if is_new("items", "queue_ms"):
        for name, comment in _COMMENTS.items():
            op.add_column("items", sa.Column(name, sa.Integer(), nullable=True, comment=comment))


def downgrade() -> None:
    """Undo."""
    for name in _COMMENTS:
        op.drop_column("items", name)
