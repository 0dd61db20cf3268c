"""Enforce the life cycle of a job in the database: a bug becomes an error, not corruption.

The arrows repeat `core.states.NEXT_STATES` as of this revision; a test holds the two together.
"""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

STATES = (
    "('validating', 'in_progress', 'finalizing', 'cancelling', "
    "'completed', 'failed', 'expired', 'cancelled')"
)

ENFORCE = """
CREATE FUNCTION enforce_job_state() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state <> OLD.state AND (OLD.state || '>' || NEW.state) NOT IN (
        'validating>in_progress', 'validating>failed', 'validating>cancelling',
        'in_progress>finalizing', 'in_progress>cancelling',
        'finalizing>completed', 'finalizing>expired', 'finalizing>cancelling',
        'cancelling>cancelled'
    ) THEN
        RAISE EXCEPTION 'job % cannot move from % to %', OLD.id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_state_moves';
    END IF;
    IF (OLD.in_progress_at IS NOT NULL AND NEW.in_progress_at IS DISTINCT FROM OLD.in_progress_at)
        OR (OLD.settled_at IS NOT NULL AND NEW.settled_at IS DISTINCT FROM OLD.settled_at)
        OR (OLD.finalizing_at IS NOT NULL AND NEW.finalizing_at IS DISTINCT FROM OLD.finalizing_at)
        OR (OLD.cancelling_at IS NOT NULL AND NEW.cancelling_at IS DISTINCT FROM OLD.cancelling_at)
        OR (OLD.total_count IS NOT NULL AND NEW.total_count IS DISTINCT FROM OLD.total_count)
        OR (OLD.close_reason IS NOT NULL AND NEW.close_reason IS DISTINCT FROM OLD.close_reason)
    THEN
        RAISE EXCEPTION 'job % would change what is set once', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_set_once';
    END IF;
    RETURN NEW;
END $$;
"""


def upgrade() -> None:
    """Apply."""
    op.create_check_constraint("state_known", "jobs", f"state IN {STATES}")
    op.create_check_constraint(
        "close_reason_known", "jobs", "close_reason IN ('cancelled', 'expired')"
    )
    op.create_check_constraint(
        "output_only_when_terminal",
        "jobs",
        "output_file_id IS NULL AND error_file_id IS NULL "
        "OR state IN ('completed', 'expired', 'cancelled')",
    )
    op.create_check_constraint("outcome_known", "items", "outcome BETWEEN 1 AND 4")
    op.execute(ENFORCE)
    op.execute(
        "CREATE TRIGGER enforce_job_state BEFORE UPDATE ON jobs "
        "FOR EACH ROW EXECUTE FUNCTION enforce_job_state()"
    )


def downgrade() -> None:
    """Undo."""
    op.execute("DROP TRIGGER enforce_job_state ON jobs")
    op.execute("DROP FUNCTION enforce_job_state")
    op.drop_constraint(op.f("ck_items_outcome_known"), "items")
    op.drop_constraint(op.f("ck_jobs_output_only_when_terminal"), "jobs")
    op.drop_constraint(op.f("ck_jobs_close_reason_known"), "jobs")
    op.drop_constraint(op.f("ck_jobs_state_known"), "jobs")
