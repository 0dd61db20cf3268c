"""Keep the history of a job: its moments stand once they are set, in order, and its end is final.

The guard of 0002 knows the arrows and some columns; this one stands beside it. Both run with an
update of `jobs`, a handful in the life of a job: what changes often is in `job_counters`.
"""

from collections.abc import Sequence
from typing import Final

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

MOMENTS: Final = {
    "in_progress_at": ("created_at",),
    "failed_at": ("created_at",),
    "settled_at": ("created_at", "in_progress_at"),
    "finalizing_at": ("created_at", "in_progress_at"),
    "cancelling_at": ("created_at", "in_progress_at", "finalizing_at"),
    "completed_at": ("created_at", "in_progress_at", "finalizing_at", "settled_at"),
    "expired_at": ("created_at", "in_progress_at", "finalizing_at", "settled_at"),
    "cancelled_at": ("created_at", "in_progress_at", "cancelling_at", "settled_at"),
}
"""Each moment, and those that it is never before."""

STATES: Final = {
    "completed_at": "NEW.state = 'completed'",
    "failed_at": "NEW.state = 'failed'",
    "expired_at": "NEW.state = 'expired'",
    "cancelling_at": "NEW.state IN ('cancelling', 'cancelled')",
    "cancelled_at": "NEW.state = 'cancelled'",
}
"""The states in which a moment may be set."""

SET_ONCE: Final = ("created_at", "deleted_at", "output_file_id", "error_file_id", *MOMENTS)

FINAL: Final = (
    "state",
    "close_reason",
    "expires_at",
    "completion_window",
    "model",
    "model_version",
    "pool",
    "total_count",
    "total_final",
    "sealed",
    "error_count",
    "output_file_id",
    "error_file_id",
    *MOMENTS,
)
"""What no longer changes when a job has ended. A deletion still takes what its owner wrote."""

FUNCTION: Final = """
CREATE FUNCTION keep_job_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF {is_changed} THEN
        RAISE EXCEPTION 'job % would change what is set once', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_set_once';
    END IF;
    IF OLD.state IN ('completed', 'failed', 'expired', 'cancelled')
        AND ROW({old}) IS DISTINCT FROM ROW({new})
    THEN
        RAISE EXCEPTION 'job % has ended: what it ended with stays', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_ended';
    END IF;
    IF {is_elsewhere} THEN
        RAISE EXCEPTION 'job % is %: a moment of another state is set', OLD.id, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_jobs_moments_of_states';
    END IF;
    -- A transaction's now() is of its start, and it may have waited for one that began later; a
    -- standby that was promoted may have a slower clock. Neither must keep a job from its end.
{lifts}
    RETURN NEW;
END $$;
"""


def upgrade() -> None:
    """Apply."""
    op.execute(_function())
    op.execute(
        "CREATE TRIGGER keep_job_history BEFORE UPDATE ON jobs "
        "FOR EACH ROW EXECUTE FUNCTION keep_job_history()"
    )


def downgrade() -> None:
    """Undo."""
    op.execute("DROP TRIGGER keep_job_history ON jobs")
    op.execute("DROP FUNCTION keep_job_history")


def _function() -> str:
    changed = (f"OLD.{c} IS NOT NULL AND NEW.{c} IS DISTINCT FROM OLD.{c}" for c in SET_ONCE)
    elsewhere = (f"NEW.{c} IS NOT NULL AND NOT ({state})" for c, state in STATES.items())
    return FUNCTION.format(
        is_changed="\n        OR ".join(changed),
        old=_columns("OLD", FINAL),
        new=_columns("NEW", FINAL),
        is_elsewhere="\n        OR ".join(elsewhere),
        lifts="\n".join(_lift(moment, before) for moment, before in MOMENTS.items()),
    )


def _columns(row: str, names: Sequence[str]) -> str:
    return ", ".join(f"{row}.{name}" for name in names)


def _lift(moment: str, before: Sequence[str]) -> str:
    """Return what makes a moment that is set the latest of itself and those before it."""
    latest = f"greatest({_columns('NEW', (moment, *before))})"
    return (
        f"    IF NEW.{moment} IS NOT NULL AND OLD.{moment} IS NULL THEN\n"
        f"        NEW.{moment} := {latest};\n    END IF;"
    )
