"""Count the processes that the items of a job crash, and quarantine its tenant on that pool."""

import sqlalchemy as sa
from alembic import op

from migrations.indexes import build, is_new

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

REASONS = "'cancelled', 'expired', 'failure_budget', 'spend_cap'"
QUARANTINED = "quarantined_until IS NOT NULL AND state = 'in_progress'"
CONSTRAINT = "ck_jobs_close_reason_known"


def upgrade() -> None:
    """Apply."""
    if is_new("jobs", "quarantined_until"):
        op.add_column(
            "jobs",
            sa.Column(
                "quarantined_until",
                sa.DateTime(timezone=True),
                comment="its tenant is in quarantine on its pool; NULL: its items may run",
            ),
        )
        _create_tables()
        _know_reasons(f"{REASONS}, 'crash_budget'")
    build("ix_jobs_quarantined", "jobs", ["id"], QUARANTINED)
    op.execute(f"ALTER TABLE jobs VALIDATE CONSTRAINT {CONSTRAINT}")  # writers go on meanwhile


def downgrade() -> None:
    """Undo. Fails while jobs are closed for the reason that is new here."""
    _know_reasons(REASONS)
    op.execute(f"ALTER TABLE jobs VALIDATE CONSTRAINT {CONSTRAINT}")
    op.drop_table("tenant_quarantines")
    op.drop_table("job_process_ends")
    op.drop_index("ix_jobs_quarantined", table_name="jobs")
    op.drop_column("jobs", "quarantined_until")


def _know_reasons(reasons: str) -> None:
    op.execute(f"ALTER TABLE jobs DROP CONSTRAINT {CONSTRAINT}")
    op.execute(
        f"ALTER TABLE jobs ADD CONSTRAINT {CONSTRAINT} "
        f"CHECK (close_reason IN ({reasons})) NOT VALID"
    )


def _create_tables() -> None:
    op.create_table(
        "job_process_ends",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("process_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["jobs.id"],
            name=op.f("fk_job_process_ends_job_id_jobs"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "process_id", name=op.f("pk_job_process_ends")),
        comment="Processes that items of a job crashed; written by the results writer alone",
    )
    op.create_table(
        "tenant_quarantines",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column(
            "job_id",
            sa.Uuid(),
            nullable=False,
            comment="the last one that exceeded its crash budget",
        ),
        sa.Column(
            "began_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
        ),
        sa.Column("ends_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_tenant_quarantines_tenant_id_tenants"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tenant_quarantines")),
        sa.UniqueConstraint("tenant_id", "pool", name=op.f("uq_tenant_quarantines_tenant_id_pool")),
        comment="Tenants whose bulk jobs wait on a pool; an operator ends one by deleting it",
    )
