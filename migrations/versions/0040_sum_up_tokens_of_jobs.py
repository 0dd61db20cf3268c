"""Keep the estimated tokens of jobs, and the pool of a file while it is validated."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import is_new

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_COLUMNS = (
    sa.Column(
        "estimated_prompt_tokens",
        sa.BigInteger(),
        comment="of all items; NULL: not estimated, as in an older release",
    ),
    sa.Column(
        "estimated_output_tokens",
        sa.BigInteger(),
        comment="of all items, expected; NULL: not estimated, as in an older release",
    ),
    sa.Column(
        "validating_pool",
        sa.Text(),
        comment="that of its first request, while its first file is validated; NULL: not known",
    ),
)


def upgrade() -> None:
    """Apply. Columns without a default rewrite no row."""
    if is_new("jobs", "estimated_prompt_tokens"):
        for column in _COLUMNS:
            op.add_column("jobs", column)


def downgrade() -> None:
    """Undo."""
    for column in reversed(_COLUMNS):
        op.drop_column("jobs", column.name)
