"""Keep since when a tenant retains nothing: what it had before is not to go.

Who retained nothing before this revision is taken to have done so from its creation on: what it had
uploaded more than a day before and no batch names is gone already, what is younger was promised to
go, and must not stay for ever.
"""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "tenants",
        sa.Column(
            "zero_retention_since",
            sa.DateTime(timezone=True),
            comment="with zero_retention: of what was created from then on; NULL: of everything",
        ),
    )


def downgrade() -> None:
    """Undo. Older files of tenants that began to retain nothing later go then, too."""
    op.drop_column("tenants", "zero_retention_since")
