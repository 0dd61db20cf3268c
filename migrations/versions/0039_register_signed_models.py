"""Keep signed versions of models, what each name meant when, and which version answered each item.

The trigger on `model_versions` also serves releases before this one: what they register becomes the
meaning of its name.
"""

import sqlalchemy as sa
from alembic import op
from alembic.util import CommandError
from sqlalchemy.dialects import postgresql

from migrations.indexes import is_new

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_TENANT_ROLE = "millrace_tenant"
_TENANT = "(SELECT nullif(current_setting('millrace.tenant_id', true), '')::uuid)"
_VISIBLE = f"tenant_id IS NULL OR tenant_id = {_TENANT}"
_OF_JOB = "(SELECT jobs.id FROM jobs WHERE jobs.id = job_provenance.job_id) IS NOT NULL"

_VERSION_COLUMNS = (
    sa.Column(
        "verification",
        sa.Text(),
        server_default="legacy",
        nullable=False,
        comment="signed, unverified (no files of ours) or legacy (from before manifests)",
    ),
    sa.Column("base_version", sa.Text(), comment="of an adapter: the version that it adapts"),
    sa.Column("tenant_id", sa.Uuid(), comment="whose private adapter it is; NULL: all tenants'"),
    sa.Column("retired_at", sa.DateTime(timezone=True), comment="it must not be loaded any more"),
)

# `registered_at` may change as releases before this one make a version the serving one by it.
_KEEP_VERSION = """
CREATE FUNCTION keep_model_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before model_versions := OLD;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        before.registered_at := NEW.registered_at;
        IF OLD.retired_at IS NULL THEN
            before.retired_at := NEW.retired_at;
        END IF;
        IF before IS NOT DISTINCT FROM NEW THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'a version of a model is never changed'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_append_only';
END $$
"""

_NAME_VERSION = """
CREATE FUNCTION name_model_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO model_names (name, version_id, tenant_id, set_at)
    VALUES (NEW.name, NEW.id, NEW.tenant_id, NEW.registered_at);
    RETURN NULL;
END $$
"""

_KEEP_KEY = """
CREATE FUNCTION keep_model_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before model_keys := OLD;
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.revoked_at IS NULL THEN
        before.revoked_at := NEW.revoked_at;
        IF before IS NOT DISTINCT FROM NEW THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION 'a key is only ever revoked, and for good'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'ck_append_only';
END $$
"""

_NAME_EXISTING = """
INSERT INTO model_names (name, version_id, set_at)
SELECT name, id, registered_at FROM model_versions ORDER BY registered_at, id
"""

# Dropping columns would let a release before this one run the wrong model for these.
_NOT_OF_0038 = (
    "SELECT name || '@' || version AS row FROM model_versions WHERE base_version IS NOT NULL "
    "OR tenant_id IS NOT NULL OR retired_at IS NOT NULL "
    "UNION ALL SELECT id::text FROM jobs WHERE models IS NOT NULL "
    "AND state IN ('validating', 'in_progress', 'finalizing', 'cancelling')"
)

_APPEND_ONLY = ("model_manifests", "model_signatures", "model_names")


def upgrade() -> None:
    """Apply. Columns without a default, or with a constant one, rewrite no row."""
    if not is_new("model_versions", "verification"):
        return
    for column in _VERSION_COLUMNS:
        op.add_column("model_versions", column)
    op.create_check_constraint(
        op.f("ck_model_versions_verification_known"),
        "model_versions",
        "verification IN ('signed', 'unverified', 'legacy')",
    )
    _create_tables()
    op.execute(_NAME_EXISTING)
    _create_triggers()
    op.add_column(
        "jobs",
        sa.Column(
            "models",
            postgresql.JSONB(),
            comment="of a file with several models or an adapter: version and base version by name",
        ),
    )
    op.add_column(
        "items",
        sa.Column(
            "provenance",
            sa.SmallInteger(),
            comment="number in job_provenance; NULL: it did not run, or in an older release",
        ),
    )
    for table, rights, condition in (
        ("model_versions", "", _VISIBLE),
        ("model_names", "SELECT", _VISIBLE),
        ("job_provenance", "SELECT", _OF_JOB),
    ):
        op.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
        op.execute(f"CREATE POLICY everyone ON {table} USING (true)")
        op.execute(
            f"CREATE POLICY own_tenant ON {table} AS RESTRICTIVE TO {_TENANT_ROLE} "
            f"USING ({condition})"
        )
        if rights:
            op.execute(f"GRANT {rights} ON {table} TO {_TENANT_ROLE}")


def downgrade() -> None:
    """Undo, unless an older release would run the wrong model for what is in the database."""
    _refuse_if_models_would_change()
    op.drop_column("items", "provenance")
    op.drop_column("jobs", "models")
    op.execute("DROP POLICY own_tenant ON model_versions")
    op.execute("DROP POLICY everyone ON model_versions")
    op.execute("ALTER TABLE model_versions DISABLE ROW LEVEL SECURITY")
    op.execute("DROP TRIGGER append_only ON model_versions")
    op.execute("DROP TRIGGER no_truncate ON model_versions")
    op.execute("DROP TRIGGER name_version ON model_versions")
    for table in ("job_provenance", "model_signatures", "model_names", "model_keys"):
        op.drop_table(table)
    op.drop_table("model_manifests")
    for function in ("keep_model_version", "name_model_version", "keep_model_key"):
        op.execute(f"DROP FUNCTION {function}()")
    op.drop_constraint("ck_model_versions_verification_known", "model_versions")
    for column in reversed(_VERSION_COLUMNS):
        op.drop_column("model_versions", column.name)


def _refuse_if_models_would_change() -> None:
    """Raise CommandError while rows exist whose meaning an older release does not know."""
    found = op.get_bind().execute(sa.text(_NOT_OF_0038)).first()
    if found is not None:
        raise CommandError(
            f"{found.row} needs revision 0039, as do adapters, private and retired versions, and "
            "open jobs with several models or an adapter: a release before it would serve adapters "
            "as models, show private ones to every tenant, and serve retired ones again. End these "
            "jobs. Versions are never deleted: where there are any, restore a backup instead. "
            f"All of them: {_NOT_OF_0038}"
        )


def _create_tables() -> None:
    op.create_table(
        "model_manifests",
        sa.Column("version", sa.Text(), nullable=False, comment="SHA-256 of the manifest"),
        sa.Column("manifest", sa.LargeBinary(), nullable=False, comment="canonical JSON"),
        sa.Column("total_bytes", sa.BigInteger(), nullable=False, comment="of its files"),
        _now("created_at"),
        sa.PrimaryKeyConstraint("version", name=op.f("pk_model_manifests")),
        comment="Append-only: what each signed version of a model is",
    )
    op.create_table(
        "model_keys",
        sa.Column("key_id", sa.Text(), nullable=False, comment="SHA-256 of the PEM text"),
        sa.Column("pem", sa.Text(), nullable=False, comment="a public key"),
        sa.Column("name", sa.Text(), nullable=False),
        _now("added_at"),
        sa.Column("revoked_at", sa.DateTime(timezone=True), comment="its signatures do not count"),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_model_keys")),
        comment="Keys whose signatures of models are accepted at registration",
    )
    op.create_table(
        "model_signatures",
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("bundle", sa.LargeBinary(), nullable=False, comment="OpenSSF Model Signing 1.0"),
        _now("created_at"),
        sa.PrimaryKeyConstraint("version", "key_id", name=op.f("pk_model_signatures")),
        sa.ForeignKeyConstraint(
            ["version"],
            ["model_manifests.version"],
            name=op.f("fk_model_signatures_version_model_manifests"),
        ),
        comment="Append-only: signatures of versions",
    )
    op.create_table(
        "model_names",
        sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version_id", sa.BigInteger(), comment="the version that it means"),
        sa.Column("alias_of", sa.Text(), comment="of an alias: a name, or name@version"),
        sa.Column("tenant_id", sa.Uuid(), comment="who alone sees it; NULL: all tenants"),
        sa.Column(
            "set_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_names")),
        sa.ForeignKeyConstraint(
            ["version_id"],
            ["model_versions.id"],
            name=op.f("fk_model_names_version_id_model_versions"),
        ),
        sa.CheckConstraint(
            "version_id IS NULL OR alias_of IS NULL", name=op.f("ck_model_names_one_meaning")
        ),
        comment="Append-only: what a name means from when on; the last row of a name counts, "
        "and one without version and alias removes it",
    )
    op.create_index("ix_model_names_name_id", "model_names", ["name", "id"])
    op.create_table(
        "job_provenance",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.SmallInteger(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False, comment="as its requests name it"),
        sa.Column("model_version", sa.Text(), nullable=False),
        sa.Column("base_version", sa.Text(), server_default="", nullable=False),
        sa.Column("engine", sa.Text(), server_default="", nullable=False, comment="its hash"),
        sa.Column("item_count", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("job_id", "number", name=op.f("pk_job_provenance")),
        comment="The versions and engines that ran items of a job",
    )
    op.create_index(
        "uq_job_provenance_job_id",
        "job_provenance",
        ["job_id", "model", "model_version", "base_version", "engine"],
        unique=True,
    )


def _create_triggers() -> None:
    for function in (_KEEP_VERSION, _NAME_VERSION, _KEEP_KEY):
        op.execute(function)
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON model_versions "
        "FOR EACH ROW EXECUTE FUNCTION keep_model_version()"
    )
    op.execute(
        "CREATE TRIGGER name_version AFTER INSERT OR UPDATE OF registered_at ON model_versions "
        "FOR EACH ROW EXECUTE FUNCTION name_model_version()"
    )
    op.execute(
        "CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON model_keys "
        "FOR EACH ROW EXECUTE FUNCTION keep_model_key()"
    )
    for table in ("model_versions", "model_keys"):
        op.execute(
            f"CREATE TRIGGER no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION refuse_change()"
        )


def _now(name: str) -> sa.Column[object]:
    return sa.Column(
        name, sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False
    )
