"""Tables of webhooks: endpoints, messages, deliveries, attempts and delivery queues.

A delivery queue holds the deliveries of one endpoint, or of a tenant's callbacks to one host, and
is named in the columns `lane`; its concurrency and its backoff are bounded together.
"""

from datetime import datetime
from typing import Final

from sqlalchemy import (
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from storage.postgres.metadata import metadata

DELETED: Final = "deleted"
"""`disabled_reason` of an endpoint that its owner deleted: hidden, its rows are being removed."""


def _timestamp(name: str, *, nullable: bool = True, comment: str | None = None) -> Column[datetime]:
    default = None if nullable else func.now()
    return Column[datetime](
        name, DateTime(timezone=True), nullable=nullable, server_default=default, comment=comment
    )


webhook_endpoints: Final = Table(
    "webhook_endpoints",
    metadata,
    Column[object]("id", Uuid, primary_key=True),
    Column[object]("tenant_id", ForeignKey("tenants.id"), nullable=False),
    Column[object]("job_id", Uuid, comment="set: the callback of one job, in no list"),
    Column[str]("name", Text, nullable=False),
    Column[str]("url", Text, nullable=False),
    Column[list[str]]("event_types", ARRAY(Text), nullable=False),
    Column[str]("lane", Text, nullable=False, comment="tries of a lane are bounded together"),
    Column[bytes](
        "sealed_secret", LargeBinary, comment="encrypted; NULL: the tenant's callback secret"
    ),
    Column[str]("secret_hint", Text, nullable=False, server_default=""),
    Column[bytes]("sealed_old_secret", LargeBinary, comment="signs too, until it ends"),
    _timestamp("old_secret_until"),
    _timestamp("created_at", nullable=False),
    _timestamp("updated_at", nullable=False),
    _timestamp("disabled_at"),
    Column[str]("disabled_reason", Text, comment="gone or failing"),
    Index(
        "ix_webhook_endpoints_listed",
        "tenant_id",
        "created_at",
        "id",
        postgresql_where=text("job_id IS NULL"),
    ),
    Index(
        "ix_webhook_endpoints_job_id",
        "job_id",
        unique=True,
        postgresql_where=text("job_id IS NOT NULL"),
    ),
)

webhook_callback_secrets: Final = Table(
    "webhook_callback_secrets",
    metadata,
    Column[object]("tenant_id", ForeignKey("tenants.id"), primary_key=True),
    Column[bytes]("sealed_secret", LargeBinary, nullable=False),
    Column[str]("secret_hint", Text, nullable=False),
    Column[bytes]("sealed_old_secret", LargeBinary),
    _timestamp("old_secret_until"),
    comment="What signs the callbacks of a tenant's jobs",
)

webhook_messages: Final = Table(
    "webhook_messages",
    metadata,
    Column[object]("id", Uuid, primary_key=True, comment="webhook-id, the same on every try"),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[object]("job_id", Uuid),
    Column[str]("event_type", Text, nullable=False),
    Column[bytes]("body", LargeBinary, nullable=False, comment="as sent, byte for byte"),
    _timestamp("created_at", nullable=False),
    Index("ix_webhook_messages_created_at", "created_at"),
    Index("ix_webhook_messages_job_id", "job_id", postgresql_where=text("job_id IS NOT NULL")),
)

webhook_deliveries: Final = Table(
    "webhook_deliveries",
    metadata,
    Column[object](
        "message_id", ForeignKey("webhook_messages.id", ondelete="CASCADE"), primary_key=True
    ),
    Column[object](
        "endpoint_id", ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), primary_key=True
    ),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[str]("lane", Text, nullable=False),
    Column[str](
        "state",
        Text,
        nullable=False,
        server_default="pending",
        comment="pending, delivered, exhausted or dropped",
    ),
    Column[bool]("is_test", Boolean, nullable=False, server_default=text("false")),
    Column[int](
        "try_count", Integer, nullable=False, server_default="0", comment="fences a late try"
    ),
    Column[int](
        "failure_count", SmallInteger, nullable=False, server_default="0", comment="of the schedule"
    ),
    _timestamp("next_try_at", nullable=False, comment="while claimed: when the claim ends"),
    Column[bool](
        "is_due",
        Boolean,
        nullable=False,
        server_default=text("true"),
        comment="a claim finds its lane; false: not before next_try_at",
    ),
    Column[str]("claimed_by", Text),
    _timestamp("created_at", nullable=False),
    _timestamp("ended_at"),
    Index("ix_webhook_deliveries_endpoint_id", "endpoint_id", "created_at", "message_id"),
    Index(
        "ix_webhook_deliveries_pending",
        "lane",
        "next_try_at",
        postgresql_where=text("state = 'pending'"),
    ),
    Index(
        "ix_webhook_deliveries_due",
        "lane",
        "next_try_at",
        postgresql_where=text("state = 'pending' AND is_due"),
    ),
    Index(
        "ix_webhook_deliveries_waiting",
        "next_try_at",
        postgresql_where=text("state = 'pending' AND NOT is_due"),
    ),
    Index(
        "ix_webhook_deliveries_claimed",
        "lane",
        "next_try_at",
        postgresql_where=text("claimed_by IS NOT NULL"),
    ),
    comment="One message for one endpoint",
)

webhook_attempts: Final = Table(
    "webhook_attempts",
    metadata,
    Column[object]("message_id", Uuid, primary_key=True),
    Column[object]("endpoint_id", Uuid, primary_key=True),
    Column[int]("number", Integer, primary_key=True, autoincrement=False),
    _timestamp("started_at", nullable=False),
    Column[int]("duration_ms", Integer, nullable=False),
    Column[int]("status_code", SmallInteger, comment="NULL: there was no answer"),
    Column[str]("error_code", Text, comment="NULL: it was delivered"),
    ForeignKeyConstraint(
        ["message_id", "endpoint_id"],
        ["webhook_deliveries.message_id", "webhook_deliveries.endpoint_id"],
        ondelete="CASCADE",
    ),
    comment="Every try, as long as its message is kept",
)

webhook_lanes: Final = Table(
    "webhook_lanes",
    metadata,
    Column[str]("lane", Text, primary_key=True),
    Column[int]("failure_count", Integer, nullable=False, comment="since the last success"),
    _timestamp("failing_since", nullable=False),
    _timestamp("last_failed_at", nullable=False),
    _timestamp("blocked_until", comment="an open breaker, or a throttling receiver"),
    comment="Lanes in trouble: a success deletes the row",
)

webhook_watches: Final = Table(
    "webhook_watches",
    metadata,
    Column[object]("job_id", Uuid, primary_key=True),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[int]("ended_count", Integer, nullable=False, server_default="0", comment="when looked"),
    Column[int](
        "percent", SmallInteger, nullable=False, server_default="0", comment="last announced"
    ),
    Column[int](
        "failed_count", Integer, nullable=False, server_default="0", comment="announced in all"
    ),
    _timestamp("failed_at", comment="with failed_index: the last failed item that was announced"),
    Column[int]("failed_index", Integer, nullable=False, server_default="-1"),
    _timestamp("announced_at", comment="of the last item.failed"),
    _timestamp("created_at", nullable=False),
    _timestamp("closed_at", comment="every item has ended and was announced"),
    Index(
        "ix_webhook_watches_open",
        "job_id",
        postgresql_where=text("closed_at IS NULL"),
    ),
    comment="Jobs whose progress or failed items somebody wants to hear of",
)
