"""Accept single requests as jobs, remember idempotency keys, let tenants opt in to caching."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LISTED = "ix_jobs_tenant_id_created_at"


def upgrade() -> None:
    """Apply."""
    op.add_column(
        "jobs",
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            server_default="batch",
            comment="batch, or request: one item that came by itself",
        ),
    )
    op.add_column(
        "jobs",
        sa.Column(
            "job_class",
            sa.Text(),
            nullable=False,
            server_default="bulk",
            comment="names the topics requests.<class> and batches.<pool>.<class>",
        ),
    )
    op.alter_column("jobs", "input_file_id", nullable=True)
    op.create_check_constraint("kind_known", "jobs", "kind IN ('batch', 'request')")
    op.create_check_constraint("class_known", "jobs", "job_class IN ('bulk', 'interactive')")
    op.create_check_constraint(
        "input_of_its_kind", "jobs", "(input_file_id IS NULL) = (kind = 'request')"
    )
    op.drop_index(LISTED, table_name="jobs")
    op.create_index(
        LISTED,
        "jobs",
        ["tenant_id", "created_at", "id"],
        postgresql_where=sa.text("kind = 'batch'"),
    )
    _create_idempotency_keys()
    op.add_column(
        "tenants",
        sa.Column(
            "response_cache_ttl_s",
            sa.Integer(),
            nullable=True,
            comment="how long an answer may be given again; NULL: never",
        ),
    )
    op.create_check_constraint("response_cache_ttl", "tenants", "response_cache_ttl_s > 0")


def downgrade() -> None:
    """Undo. Fails while single requests exist."""
    op.drop_constraint(op.f("ck_tenants_response_cache_ttl"), "tenants")
    op.drop_column("tenants", "response_cache_ttl_s")
    op.drop_table("idempotency_keys")
    op.drop_index(LISTED, table_name="jobs")
    op.create_index(LISTED, "jobs", ["tenant_id", "created_at", "id"])
    op.drop_constraint(op.f("ck_jobs_input_of_its_kind"), "jobs")
    op.drop_constraint(op.f("ck_jobs_class_known"), "jobs")
    op.drop_constraint(op.f("ck_jobs_kind_known"), "jobs")
    op.alter_column("jobs", "input_file_id", nullable=False)
    op.drop_column("jobs", "job_class")
    op.drop_column("jobs", "kind")


def _create_idempotency_keys() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("scope", sa.Text(), nullable=False, comment="client, or retry: derived by us"),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False, comment="method and path"),
        sa.Column("body_sha256", sa.LargeBinary(), nullable=True, comment="NULL: still being read"),
        sa.Column("state", sa.Text(), nullable=False, comment="in_flight or saved"),
        sa.Column("holder", sa.Uuid(), nullable=False, comment="the call that may save it"),
        sa.Column(
            "attempt",
            sa.SmallInteger(),
            nullable=False,
            server_default="0",
            comment="tries that its client had made before",
        ),
        sa.Column(
            "in_flight_until",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="then an unsaved key is free again",
        ),
        sa.Column("job_id", sa.Uuid(), nullable=True, comment="whose answer this is, if not saved"),
        sa.Column("status_code", sa.SmallInteger(), nullable=True),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("body_key", sa.Text(), nullable=True, comment="object of a large body"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("scope IN ('client', 'retry')", name="scope_known"),
        sa.CheckConstraint("state IN ('in_flight', 'saved')", name="state_known"),
        sa.CheckConstraint(
            "state = 'in_flight' OR (status_code IS NOT NULL AND body_sha256 IS NOT NULL)",
            name="saved_whole",
        ),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_idempotency_keys_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("tenant_id", "scope", "key", name=op.f("pk_idempotency_keys")),
        comment="What was answered to a POST with this key; replayed until it expires",
    )
    op.create_index(op.f("ix_idempotency_keys_expires_at"), "idempotency_keys", ["expires_at"])
