"""Find the oldest open requests of a pool, so that stall recovery need not read every open job."""

from typing import Final

from migrations.indexes import build, drop

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_INDEX: Final = "ix_jobs_open_requests"
_CONDITION: Final = (
    "kind = 'request' AND state = 'in_progress' AND settled_at IS NULL AND close_reason IS NULL"
)


def upgrade() -> None:
    """Apply."""
    build(_INDEX, "jobs", ["pool", "created_at", "id"], _CONDITION)


def downgrade() -> None:
    """Undo."""
    drop(_INDEX, "jobs")
