"""Let owners pause, hurry, extend and bound their jobs; keep the files appended to a job."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

MOVES = """
    IF NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'validating>in_progress', 'validating>failed', 'validating>cancelling',
        'in_progress>finalizing', 'in_progress>cancelling',
        'finalizing>completed', 'finalizing>expired', 'finalizing>cancelling',
        'cancelling>cancelled'
    ) THEN
        RAISE EXCEPTION 'job % cannot move from % to %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_state_moves';
    END IF;
"""

SET_ONCE = """
        (OLD.in_progress_at IS NOT NULL AND NEW.in_progress_at IS DISTINCT FROM OLD.in_progress_at)
        OR (OLD.settled_at IS NOT NULL AND NEW.settled_at IS DISTINCT FROM OLD.settled_at)
        OR (OLD.finalizing_at IS NOT NULL AND NEW.finalizing_at IS DISTINCT FROM OLD.finalizing_at)
        OR (OLD.cancelling_at IS NOT NULL AND NEW.cancelling_at IS DISTINCT FROM OLD.cancelling_at)
        OR (OLD.close_reason IS NOT NULL AND NEW.close_reason IS DISTINCT FROM OLD.close_reason)
"""

# A total that is not final may grow, and nothing else: items have their indexes for good.
TOTALS = """
        OR (OLD.total_count IS NOT NULL AND NEW.total_count IS DISTINCT FROM OLD.total_count
            AND (OLD.total_final OR NEW.total_count IS NULL OR NEW.total_count < OLD.total_count))
        OR (OLD.sealed AND NOT NEW.sealed)
        OR (OLD.total_final AND NOT NEW.total_final)
        OR NEW.control_version < OLD.control_version
        OR NEW.void_below < OLD.void_below
"""

TOTAL_ONCE = """
        OR (OLD.total_count IS NOT NULL AND NEW.total_count IS DISTINCT FROM OLD.total_count)
"""

FUNCTION = """
CREATE OR REPLACE FUNCTION enforce_job_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
{moves}
    IF {set_once}
    THEN
        RAISE EXCEPTION 'job % would change what is set once', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_set_once';
    END IF;
    RETURN NEW;
END $$;
"""

VOIDED = "void_below > 0 AND state = 'in_progress'"

CHECKS = {
    "priority_known": "priority BETWEEN 0 AND 9",
    "total_final_when_sealed": "sealed OR NOT total_final",
    "settled_when_final": "total_final OR settled_at IS NULL",
    "void_below_a_version": "void_below <= control_version",
    "budgets": "max_failed_items >= 0 AND max_failed_ratio BETWEEN 0 AND 1 "
    "AND failed_ratio_sample > 0 AND max_total_tokens > 0",
}


def upgrade() -> None:
    """Apply."""
    for column in _controls():
        op.add_column("jobs", column)
    for name, condition in CHECKS.items():
        op.create_check_constraint(name, "jobs", condition)
    _know_reasons("'cancelled', 'expired', 'failure_budget', 'spend_cap'")
    op.execute(FUNCTION.format(moves=MOVES, set_once=SET_ONCE + TOTALS))
    op.create_index("ix_jobs_voided", "jobs", ["id"], postgresql_where=sa.text(VOIDED))
    op.add_column(
        "job_cursors",
        sa.Column(
            "void_below",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="what jobs.void_below made void up to here is on the log again",
        ),
    )
    _create_inputs()


def downgrade() -> None:
    """Undo. Fails while jobs are closed for a reason that is new here."""
    op.drop_table("job_inputs")
    op.drop_column("job_cursors", "void_below")
    op.drop_index("ix_jobs_voided", table_name="jobs")
    op.execute(FUNCTION.format(moves=MOVES, set_once=SET_ONCE + TOTAL_ONCE))
    _know_reasons("'cancelled', 'expired'")
    for name in CHECKS:
        op.drop_constraint(op.f(f"ck_jobs_{name}"), "jobs")
    for column in _controls():
        op.drop_column("jobs", column.name)


def _controls() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column(
            "priority",
            sa.SmallInteger(),
            nullable=False,
            server_default="5",
            comment="0 to 9, among the jobs of its tenant; the highest first",
        ),
        sa.Column(
            "paused_at", sa.DateTime(timezone=True), nullable=True, comment="NULL: not paused"
        ),
        sa.Column(
            "control_version",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="grows with each change of what its owner controls",
        ),
        sa.Column(
            "void_below",
            sa.Integer(),
            nullable=False,
            server_default="0",
            comment="its records on the log from before this control version count as lost",
        ),
        sa.Column(
            "sealed",
            sa.Boolean(),
            nullable=False,
            server_default="true",
            comment="takes no more files",
        ),
        sa.Column(
            "total_final",
            sa.Boolean(),
            nullable=False,
            server_default="true",
            comment="sealed, and every file has its verdict: total_count stays",
        ),
        sa.Column("max_failed_items", sa.Integer(), nullable=True, comment="more close the job"),
        sa.Column(
            "max_failed_ratio",
            sa.Double(),
            nullable=True,
            comment="of the items that ran; more closes the job",
        ),
        sa.Column(
            "failed_ratio_sample",
            sa.Integer(),
            nullable=True,
            comment="items that ran before the ratio counts",
        ),
        sa.Column(
            "max_total_tokens", sa.BigInteger(), nullable=True, comment="as many close the job"
        ),
    )


def _know_reasons(reasons: str) -> None:
    op.drop_constraint(op.f("ck_jobs_close_reason_known"), "jobs")
    op.create_check_constraint("close_reason_known", "jobs", f"close_reason IN ({reasons})")


def _create_inputs() -> None:
    op.create_table(
        "job_inputs",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column(
            "number", sa.SmallInteger(), nullable=False, comment="from 1, in the order of appends"
        ),
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column(
            "object_key", sa.Text(), nullable=False, comment="pinned until the job is terminal"
        ),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "state",
            sa.Text(),
            nullable=False,
            server_default="validating",
            comment="validating, accepted, refused, or dropped: its job closed first",
        ),
        sa.Column(
            "first_index",
            sa.Integer(),
            nullable=True,
            comment="of its items in the job; set when accepted",
        ),
        sa.Column("item_count", sa.Integer(), nullable=True, comment="set when accepted"),
        sa.Column(
            "errors",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=True,
            comment="first validation errors, as shown",
        ),
        sa.Column("error_count", sa.Integer(), nullable=False, server_default="0"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
        sa.CheckConstraint(
            "state IN ('validating', 'accepted', 'refused', 'dropped')", name="state_known"
        ),
        sa.CheckConstraint(
            "(state = 'accepted') = (first_index IS NOT NULL AND item_count IS NOT NULL)",
            name="accepted_whole",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_inputs_job_id_jobs")),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_job_inputs_file_id_files")
        ),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_inputs")),
        comment="Files appended to jobs; the items of each follow those of the files before",
    )
    op.create_index(
        "ix_job_inputs_validating",
        "job_inputs",
        ["job_id"],
        postgresql_where=sa.text("state = 'validating'"),
    )
    op.create_index(
        "ix_job_inputs_reading",
        "job_inputs",
        ["file_id"],
        postgresql_where=sa.text("state IN ('validating', 'accepted')"),
    )
