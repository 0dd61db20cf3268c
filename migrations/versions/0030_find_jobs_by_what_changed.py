"""Find jobs by what changed, so that intake need not read every open job in each round.

A trigger marks each written row of a job, its cursor and its counters with its transaction. It is a
trigger, and not part of each statement, since processes of older releases write these rows, too.
"""

from typing import Final

from alembic import op

from migrations.indexes import build, drop, is_new

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

MARKED: Final = ("jobs", "job_cursors", "job_counters")

_FUNCTION: Final = """
CREATE OR REPLACE FUNCTION mark_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed_xid := pg_current_xact_id()::text::bigint;
    RETURN NEW;
END $$
"""
_COMMENT: Final = "transaction that last wrote the row"

INDEXES: Final = {
    "ix_jobs_expiring": (
        "jobs",
        ["expires_at"],
        "state = 'in_progress' AND settled_at IS NULL AND close_reason IS NULL",
    ),
    "ix_jobs_closing": (
        "jobs",
        ["id"],
        "state IN ('in_progress', 'cancelling') AND settled_at IS NULL"
        " AND close_reason IS NOT NULL",
    ),
    "ix_jobs_unvalidated": (
        "jobs",
        ["created_at"],
        "kind = 'batch' AND state IN ('validating', 'cancelling') AND total_count IS NULL",
    ),
    "ix_job_leases_role_expires_at": ("job_leases", ["role", "expires_at"], None),
    **{f"ix_{table}_changed_xid": (table, ["changed_xid"], None) for table in MARKED},
}
"""By name: table, columns and condition."""


def upgrade() -> None:
    """Apply."""
    op.execute(_FUNCTION)
    for table in MARKED:
        if is_new(table, "changed_xid"):
            # A constant default: Postgres rewrites no row.
            op.execute(f"ALTER TABLE {table} ADD COLUMN changed_xid bigint NOT NULL DEFAULT 0")
            op.execute(f"COMMENT ON COLUMN {table}.changed_xid IS '{_COMMENT}'")
            op.execute(
                f"CREATE TRIGGER mark_change BEFORE INSERT OR UPDATE ON {table} "
                "FOR EACH ROW EXECUTE FUNCTION mark_change()"
            )
    for name, (table, columns, condition) in INDEXES.items():
        build(name, table, columns, condition)


def downgrade() -> None:
    """Undo."""
    for name, (table, _, _) in INDEXES.items():
        drop(name, table)
    for table in MARKED:
        op.execute(f"DROP TRIGGER mark_change ON {table}")
        op.drop_column(table, "changed_xid")
    op.execute("DROP FUNCTION mark_change")
