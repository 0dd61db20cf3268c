"""Keep endpoints of webhooks, their messages and every try; find failed items by their time."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

TABLES = (
    "webhook_endpoints",
    "webhook_callback_secrets",
    "webhook_messages",
    "webhook_deliveries",
    "webhook_attempts",
    "webhook_lanes",
    "webhook_watches",
)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column(
            "job_id", sa.Uuid(), nullable=True, comment="set: the callback of one job, in no list"
        ),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column(
            "lane", sa.Text(), nullable=False, comment="tries of a lane are bounded together"
        ),
        sa.Column(
            "sealed_secret",
            sa.LargeBinary(),
            nullable=True,
            comment="encrypted; NULL: the tenant's callback secret",
        ),
        sa.Column("secret_hint", sa.Text(), server_default="", nullable=False),
        sa.Column(
            "sealed_old_secret", sa.LargeBinary(), nullable=True, comment="signs too, until it ends"
        ),
        sa.Column("old_secret_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True, comment="gone or failing"),
        sa.ForeignKeyConstraint(
            ["tenant_id"], ["tenants.id"], name=op.f("fk_webhook_endpoints_tenant_id_tenants")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index(
        "ix_webhook_endpoints_job_id",
        "webhook_endpoints",
        ["job_id"],
        unique=True,
        postgresql_where=sa.text("job_id IS NOT NULL"),
    )
    op.create_index(
        "ix_webhook_endpoints_tenant_id",
        "webhook_endpoints",
        ["tenant_id", "created_at", "id"],
        unique=False,
    )
    op.create_table(
        "webhook_callback_secrets",
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("sealed_secret", sa.LargeBinary(), nullable=False),
        sa.Column("secret_hint", sa.Text(), nullable=False),
        sa.Column("sealed_old_secret", sa.LargeBinary(), nullable=True),
        sa.Column("old_secret_until", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["tenant_id"],
            ["tenants.id"],
            name=op.f("fk_webhook_callback_secrets_tenant_id_tenants"),
        ),
        sa.PrimaryKeyConstraint("tenant_id", name=op.f("pk_webhook_callback_secrets")),
        comment="What signs the callbacks of a tenant's jobs",
    )
    op.create_table(
        "webhook_messages",
        sa.Column("id", sa.Uuid(), nullable=False, comment="webhook-id, the same on every try"),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False, comment="as sent, byte for byte"),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_messages")),
    )
    op.create_index(
        "ix_webhook_messages_created_at", "webhook_messages", ["created_at"], unique=False
    )
    op.create_table(
        "webhook_deliveries",
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column(
            "state",
            sa.Text(),
            server_default="pending",
            nullable=False,
            comment="pending, delivered, exhausted or dropped",
        ),
        sa.Column("is_test", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column(
            "try_count",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="fences a late try",
        ),
        sa.Column(
            "failure_count",
            sa.SmallInteger(),
            server_default="0",
            nullable=False,
            comment="of the schedule",
        ),
        sa.Column(
            "next_try_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="while claimed: when the claim ends",
        ),
        sa.Column("claimed_by", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["endpoint_id"],
            ["webhook_endpoints.id"],
            name=op.f("fk_webhook_deliveries_endpoint_id_webhook_endpoints"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["message_id"],
            ["webhook_messages.id"],
            name=op.f("fk_webhook_deliveries_message_id_webhook_messages"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("message_id", "endpoint_id", name=op.f("pk_webhook_deliveries")),
        comment="One message for one endpoint",
    )
    op.create_index(
        "ix_webhook_deliveries_claimed",
        "webhook_deliveries",
        ["lane", "next_try_at"],
        unique=False,
        postgresql_where=sa.text("claimed_by IS NOT NULL"),
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint_id",
        "webhook_deliveries",
        ["endpoint_id", "created_at", "message_id"],
        unique=False,
    )
    op.create_index(
        "ix_webhook_deliveries_pending",
        "webhook_deliveries",
        ["lane", "next_try_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "webhook_attempts",
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint_id", sa.Uuid(), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.Column(
            "status_code", sa.SmallInteger(), nullable=True, comment="NULL: there was no answer"
        ),
        sa.Column("error_code", sa.Text(), nullable=True, comment="NULL: it was delivered"),
        sa.ForeignKeyConstraint(
            ["message_id", "endpoint_id"],
            ["webhook_deliveries.message_id", "webhook_deliveries.endpoint_id"],
            name=op.f("fk_webhook_attempts_message_id_endpoint_id_webhook_deliveries"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint(
            "message_id", "endpoint_id", "number", name=op.f("pk_webhook_attempts")
        ),
        comment="Every try, as long as its message is kept",
    )
    op.create_table(
        "webhook_lanes",
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("failure_count", sa.Integer(), nullable=False, comment="since the last success"),
        sa.Column(
            "failing_since",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "blocked_until",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="an open breaker, or a throttling receiver",
        ),
        sa.PrimaryKeyConstraint("lane", name=op.f("pk_webhook_lanes")),
        comment="Lanes in trouble: a success deletes the row",
    )
    op.create_table(
        "webhook_watches",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("tenant_id", sa.Uuid(), nullable=False),
        sa.Column(
            "ended_count", sa.Integer(), server_default="0", nullable=False, comment="when looked"
        ),
        sa.Column(
            "percent",
            sa.SmallInteger(),
            server_default="0",
            nullable=False,
            comment="last announced",
        ),
        sa.Column(
            "failed_count",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="announced in all",
        ),
        sa.Column(
            "failed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="with failed_index: the last failed item that was announced",
        ),
        sa.Column("failed_index", sa.Integer(), server_default="-1", nullable=False),
        sa.Column(
            "announced_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="of the last item.failed",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "closed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="every item has ended and was announced",
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_webhook_watches")),
        comment="Jobs whose progress or failed items somebody wants to hear of",
    )
    op.create_index(
        "ix_webhook_watches_open",
        "webhook_watches",
        ["job_id"],
        unique=False,
        postgresql_where=sa.text("closed_at IS NULL"),
    )
    op.create_index(
        "ix_items_failed",
        "items",
        ["job_day", "job_id", "finished_at", "item_index"],
        postgresql_where=sa.text("outcome = 2"),
    )


def downgrade() -> None:
    """Undo."""
    op.drop_index("ix_items_failed", table_name="items")
    for name in reversed(TABLES):
        op.drop_table(name)
