"""Wall tenants off: the role in which the API serves a tenant sees that tenant's rows alone."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ROLE = "millrace_tenant"

# A role belongs to the whole cluster: another database may have it, or be making it right now.
MAKE_ROLE = f"""
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{ROLE}') THEN
        BEGIN
            CREATE ROLE {ROLE} NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END IF;
    IF NOT pg_has_role('{ROLE}', 'SET') THEN
        BEGIN
            GRANT {ROLE} TO CURRENT_USER WITH INHERIT FALSE, SET TRUE;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
EXCEPTION WHEN insufficient_privilege THEN
    RAISE insufficient_privilege USING MESSAGE = format(
        'the user %I may not make the role {ROLE} or take it; let an administrator run: '
        'CREATE ROLE {ROLE} NOLOGIN; GRANT {ROLE} TO %I WITH INHERIT FALSE, SET TRUE;',
        current_user, current_user);
END $$
"""

GRANT_SCHEMA = f"""
DO $$ BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO {ROLE}', current_schema());
END $$
"""

REVOKE_SCHEMA = GRANT_SCHEMA.replace("GRANT", "REVOKE").replace(" TO ", " FROM ")

# It stays while another database has use for it.
DROP_ROLE = f"""
DO $$ BEGIN
    DROP ROLE {ROLE};
EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN
    NULL;
END $$
"""

TENANT = "(SELECT nullif(current_setting('millrace.tenant_id', true), '')::uuid)"
OWN = f"tenant_id = {TENANT}"


# Whoever owns no job sees no row of it. One probe a row, as the planner might hash all jobs of a
# tenant for EXISTS or IN; and of IS NOT NULL it expects that nearly all rows pass, which is so.
OF_JOB = "(SELECT jobs.id FROM jobs WHERE jobs.id = {job_id}) IS NOT NULL"
OF_ENDPOINT = "(SELECT w.id FROM webhook_endpoints w WHERE w.id = {endpoint_id}) IS NOT NULL"


def _of_job(table: str) -> str:
    return OF_JOB.format(job_id=f"{table}.job_id")


# A lane is of an endpoint, or of all callbacks of a tenant to one host.
LANE_ID = "split_part(webhook_lanes.lane, ':', 2)::uuid"
OF_LANE = (
    f"CASE WHEN lane LIKE 'c:%' THEN {LANE_ID} = {TENANT} "
    f"ELSE {OF_ENDPOINT.format(endpoint_id=LANE_ID)} END"
)

# Of each table: what the role may do, and which rows exist for it.
WALLS = {
    "audit_heads": ("SELECT, INSERT, UPDATE", OWN),
    "audit_log": ("SELECT, INSERT", OWN),
    "dead_items": ("SELECT, UPDATE", OWN),
    "deletions": ("SELECT, INSERT", OWN),
    "files": ("SELECT, INSERT, UPDATE", OWN),
    "idempotency_keys": ("SELECT, INSERT, UPDATE, DELETE", OWN),
    "item_attempts": ("SELECT", _of_job("item_attempts")),
    "item_copies": ("SELECT", _of_job("item_copies")),
    "item_retries": ("SELECT", _of_job("item_retries")),
    "items": ("SELECT", _of_job("items")),
    "job_counters": ("SELECT, INSERT, UPDATE, DELETE", _of_job("job_counters")),
    "job_cursors": ("SELECT, INSERT", _of_job("job_cursors")),
    "job_inputs": ("SELECT, INSERT, UPDATE", _of_job("job_inputs")),
    "job_slices": ("SELECT", _of_job("job_slices")),
    "jobs": ("SELECT, INSERT, UPDATE", OWN),
    # Its key is a job's id: so nobody closes the job of another.
    "outbox": ("INSERT", OF_JOB.format(job_id="encode(outbox.key, 'hex')::uuid")),
    # The update of an id is a lock on the row and can change nothing.
    "tenants": ("SELECT, UPDATE (id)", f"id = {TENANT}"),
    "usage_ledger": ("SELECT", OWN),
    "webhook_attempts": ("SELECT", OF_ENDPOINT.format(endpoint_id="webhook_attempts.endpoint_id")),
    "webhook_callback_secrets": ("SELECT, INSERT, UPDATE", OWN),
    "webhook_deliveries": ("SELECT, INSERT, UPDATE", OWN),
    "webhook_endpoints": ("SELECT, INSERT, UPDATE, DELETE", OWN),
    "webhook_lanes": ("SELECT, DELETE", OF_LANE),
    "webhook_messages": ("SELECT, INSERT, DELETE", OWN),
    "webhook_watches": ("SELECT, INSERT, DELETE", OWN),
}

# A job and its two companions may come in one statement, which does not see the job yet. A second
# companion of a job that exists is refused by its primary key.
COMPANIONS = ("job_counters", "job_cursors")

# No tenant's rows.
OPEN = {"model_versions": "SELECT"}


def upgrade() -> None:
    """Apply."""
    op.execute(MAKE_ROLE)
    op.execute(GRANT_SCHEMA)
    for table, (rights, condition) in WALLS.items():
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        # For users of processes that do not own the tables: the wall is for one role alone.
        op.execute(f"CREATE POLICY everyone ON {table} USING (true)")
        check = " WITH CHECK (true)" if table in COMPANIONS else ""
        op.execute(
            f"CREATE POLICY own_tenant ON {table} AS RESTRICTIVE TO {ROLE} "
            f"USING ({condition}){check}"
        )
        op.execute(f"GRANT {rights} ON {table} TO {ROLE}")
    for table, rights in OPEN.items():
        op.execute(f"GRANT {rights} ON {table} TO {ROLE}")


def downgrade() -> None:
    """Undo. An API of this revision refuses to serve then: stop it before."""
    for table in (*OPEN, *WALLS):
        op.execute(f"REVOKE ALL ON {table} FROM {ROLE}")
    for table in WALLS:
        op.execute(f"DROP POLICY own_tenant ON {table}")
        op.execute(f"DROP POLICY everyone ON {table}")
        op.execute(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")
    op.execute(REVOKE_SCHEMA)
    op.execute(DROP_ROLE)
