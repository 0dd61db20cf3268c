"""Tables of webhooks: endpoints, messages, deliveries, attempts and delivery queues.

A delivery queue holds the deliveries of one endpoint, or of a tenant's callbacks to one host, and
is named in the columns `lane`; its concurrency and its backoff are bounded together.
"""

from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from jobs.tables.columns import count, flag, integer, partial_index, text, timestamp
from storage.postgres.metadata import metadata

DELETED: Final = "deleted"
"""`disabled_reason` of an endpoint that its owner deleted: hidden, its rows are being removed."""

webhook_endpoints: Final = sa.Table(
    "webhook_endpoints",
    metadata,
    sa.Column[object]("id", sa.Uuid, primary_key=True),
    sa.Column[object]("tenant_id", sa.ForeignKey("tenants.id"), nullable=False),
    sa.Column[object]("job_id", sa.Uuid, comment="set: the callback of one job, in no list"),
    text("name"),
    text("url"),
    sa.Column[list[str]]("event_types", ARRAY(sa.Text), nullable=False),
    text("lane", comment="tries of a lane are bounded together"),
    sa.Column[bytes](
        "sealed_secret", sa.LargeBinary, comment="encrypted; NULL: the tenant's callback secret"
    ),
    text("secret_hint", default=""),
    sa.Column[bytes]("sealed_old_secret", sa.LargeBinary, comment="signs too, until it ends"),
    timestamp("old_secret_until"),
    timestamp("created_at", has_default=True),
    timestamp("updated_at", has_default=True),
    timestamp("disabled_at"),
    sa.Column[str]("disabled_reason", sa.Text, comment="gone or failing"),
    partial_index(
        "ix_webhook_endpoints_listed", "tenant_id", "created_at", "id", where="job_id IS NULL"
    ),
    partial_index("ix_webhook_endpoints_job_id", "job_id", where="job_id IS NOT NULL", unique=True),
)

webhook_callback_secrets: Final = sa.Table(
    "webhook_callback_secrets",
    metadata,
    sa.Column[object]("tenant_id", sa.ForeignKey("tenants.id"), primary_key=True),
    sa.Column[bytes]("sealed_secret", sa.LargeBinary, nullable=False),
    text("secret_hint"),
    sa.Column[bytes]("sealed_old_secret", sa.LargeBinary),
    timestamp("old_secret_until"),
    comment="What signs the callbacks of a tenant's jobs",
)

webhook_messages: Final = sa.Table(
    "webhook_messages",
    metadata,
    sa.Column[object]("id", sa.Uuid, primary_key=True, comment="webhook-id, the same on every try"),
    sa.Column[object]("tenant_id", sa.Uuid, nullable=False),
    sa.Column[object]("job_id", sa.Uuid),
    text("event_type"),
    sa.Column[bytes]("body", sa.LargeBinary, nullable=False, comment="as sent, byte for byte"),
    timestamp("created_at", has_default=True),
    sa.Index("ix_webhook_messages_created_at", "created_at"),
    partial_index("ix_webhook_messages_job_id", "job_id", where="job_id IS NOT NULL"),
)

webhook_deliveries: Final = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column[object](
        "message_id", sa.ForeignKey("webhook_messages.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column[object](
        "endpoint_id", sa.ForeignKey("webhook_endpoints.id", ondelete="CASCADE"), primary_key=True
    ),
    sa.Column[object]("tenant_id", sa.Uuid, nullable=False),
    text("lane"),
    text("state", default="pending", comment="pending, delivered, exhausted or dropped"),
    flag("is_test", "false"),
    count("try_count", comment="fences a late try"),
    count("failure_count", sa.SmallInteger, comment="of the schedule"),
    timestamp("next_try_at", has_default=True, comment="while claimed: when the claim ends"),
    flag("is_due", "true", comment="a claim finds its lane; false: not before next_try_at"),
    sa.Column[str]("claimed_by", sa.Text),
    timestamp("created_at", has_default=True),
    timestamp("ended_at"),
    sa.Index("ix_webhook_deliveries_endpoint_id", "endpoint_id", "created_at", "message_id"),
    partial_index(
        "ix_webhook_deliveries_pending", "lane", "next_try_at", where="state = 'pending'"
    ),
    partial_index(
        "ix_webhook_deliveries_due", "lane", "next_try_at", where="state = 'pending' AND is_due"
    ),
    partial_index(
        "ix_webhook_deliveries_waiting", "next_try_at", where="state = 'pending' AND NOT is_due"
    ),
    partial_index(
        "ix_webhook_deliveries_claimed", "lane", "next_try_at", where="claimed_by IS NOT NULL"
    ),
    comment="One message for one endpoint",
)

webhook_attempts: Final = sa.Table(
    "webhook_attempts",
    metadata,
    sa.Column[object]("message_id", sa.Uuid, primary_key=True),
    sa.Column[object]("endpoint_id", sa.Uuid, primary_key=True),
    sa.Column[int]("number", sa.Integer, primary_key=True, autoincrement=False),
    timestamp("started_at", has_default=True),
    integer("duration_ms"),
    sa.Column[int]("status_code", sa.SmallInteger, comment="NULL: there was no answer"),
    sa.Column[str]("error_code", sa.Text, comment="NULL: it was delivered"),
    sa.ForeignKeyConstraint(
        ["message_id", "endpoint_id"],
        ["webhook_deliveries.message_id", "webhook_deliveries.endpoint_id"],
        ondelete="CASCADE",
    ),
    comment="Every try, as long as its message is kept",
)

webhook_lanes: Final = sa.Table(
    "webhook_lanes",
    metadata,
    sa.Column[str]("lane", sa.Text, primary_key=True),
    integer("failure_count", comment="since the last success"),
    timestamp("failing_since", has_default=True),
    timestamp("last_failed_at", has_default=True),
    timestamp("blocked_until", comment="an open breaker, or a throttling receiver"),
    comment="Lanes in trouble: a success deletes the row",
)

webhook_watches: Final = sa.Table(
    "webhook_watches",
    metadata,
    sa.Column[object]("job_id", sa.Uuid, primary_key=True),
    sa.Column[object]("tenant_id", sa.Uuid, nullable=False),
    count("ended_count", comment="when looked"),
    count("percent", sa.SmallInteger, comment="last announced"),
    count("failed_count", comment="announced in all"),
    timestamp("failed_at", comment="with failed_index: the last failed item that was announced"),
    integer("failed_index", default="-1"),
    timestamp("announced_at", comment="of the last item.failed"),
    timestamp("created_at", has_default=True),
    timestamp("closed_at", comment="every item has ended and was announced"),
    partial_index("ix_webhook_watches_open", "job_id", where="closed_at IS NULL"),
    comment="Jobs whose progress or failed items somebody wants to hear of",
)
