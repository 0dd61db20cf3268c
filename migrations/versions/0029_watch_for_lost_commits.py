"""Add the watermark by which roles detect that a failover lost commits."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "commit_watermark",
        sa.Column(
            "id",
            sa.SmallInteger(),
            autoincrement=False,
            nullable=False,
            comment="1: there is one row",
        ),
        sa.Column("installation_id", sa.Uuid(), nullable=False, comment="random"),
        sa.Column(
            "number",
            sa.BigInteger(),
            nullable=False,
            comment="written to the log after the commit",
        ),
        sa.Column(
            "advanced_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "lost_above",
            sa.BigInteger(),
            comment="commits were lost: the highest number known; millrace recover clears it",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commit_watermark")),
        sa.CheckConstraint("id = 1", name=op.f("ck_commit_watermark_one_row")),
        comment="Incremented about once a second; a lower number than before means lost commits",
    )
    op.execute(
        "INSERT INTO commit_watermark (id, installation_id, number) "
        "VALUES (1, gen_random_uuid(), 0)"
    )


def downgrade() -> None:
    """Undo. Lost commits are not detected any more."""
    op.drop_table("commit_watermark")
