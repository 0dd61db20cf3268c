"""Index the usage ledger by tenant and time: the bill of a month reads the rows of its tenant."""

from migrations.indexes import build, drop

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

NAME = "ix_usage_ledger_tenant_id_created_at"


def upgrade() -> None:
    """Apply."""
    build(NAME, "usage_ledger", ["tenant_id", "created_at"])


def downgrade() -> None:
    """Undo."""
    drop(NAME, "usage_ledger")
