"""Records messages: each event once, with a delivery for every endpoint subscribed to its type."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.states import TERMINAL_STATES, JobKind, JobState
from jobs.tables.jobs import jobs
from results.webhooks.events.messages import (
    ITEM_FAILED,
    REQUEST_EVENTS,
    STATE_EVENTS,
    WATCHED_EVENTS,
    WebhookMessage,
    job_message,
)
from results.webhooks.tables import (
    webhook_deliveries,
    webhook_endpoints,
    webhook_messages,
    webhook_watches,
)
from topics.records.records import JobEvent

_WATCH_RUNNING: Final = sa.text("""
INSERT INTO webhook_watches
    (job_id, tenant_id, ended_count, percent, failed_count, failed_at, failed_index)
SELECT j.id, j.tenant_id, coalesce(past.ended, 0), coalesce(past.percent, 0),
    coalesce(past.failed, 0), past.finished_at, coalesce(past.item_index, -1)
FROM jobs j LEFT JOIN LATERAL (
    SELECT n.ended, n.failed, last.finished_at, last.item_index,
        CASE WHEN j.total_final THEN 100::bigint * n.ended / nullif(j.total_count, 0) END AS percent
    FROM job_counters c
    CROSS JOIN LATERAL (
        SELECT c.succeeded + c.failed + c.cancelled + c.expired AS ended, c.failed
    ) AS n
    LEFT JOIN LATERAL (
        SELECT finished_at, item_index FROM items
        WHERE job_day = (j.created_at AT TIME ZONE 'UTC')::date - date '1970-01-01'
            AND items.job_id = j.id AND outcome = 2
        ORDER BY finished_at DESC, item_index DESC LIMIT 1
    ) AS last ON true
    WHERE c.job_id = j.id AND NOT EXISTS (
        SELECT FROM webhook_endpoints e
        WHERE e.tenant_id = j.tenant_id AND e.id <> :endpoint AND e.disabled_at IS NULL
            AND (e.job_id IS NULL OR e.job_id = j.id) AND e.event_types && :watched
            AND e.created_at <= coalesce(j.in_progress_at, j.created_at)
    )
) AS past ON true
WHERE j.tenant_id = :tenant AND j.kind = 'batch' AND j.state = 'in_progress'
ON CONFLICT DO NOTHING
""").bindparams(
    sa.bindparam("tenant", type_=sa.Uuid),
    sa.bindparam("endpoint", type_=sa.Uuid),
    sa.bindparam("watched", type_=sa.ARRAY(sa.Text), value=list(WATCHED_EVENTS)),
)
"""Watches start at the present counters. They start at zero where an older endpoint is subscribed
since the job began, because the event that would create its watch may not be read yet."""

_EVENTS: Final = {JobKind.BATCH: STATE_EVENTS, JobKind.REQUEST: REQUEST_EVENTS}
_RECORDED_STATES: Final = {JobState.IN_PROGRESS.value, *(state.value for state in TERMINAL_STATES)}


@dataclass(frozen=True, slots=True)
class Subscription:
    """An enabled endpoint, of a tenant or (a callback) of one job."""

    endpoint_id: UUID
    tenant_id: UUID
    job_id: UUID | None
    lane: str  # name of its delivery queue
    event_types: frozenset[str]
    since_s: float  # earlier events are not delivered

    def matches(self, tenant_id: UUID, job_id: UUID | None, at_s: float) -> bool:
        """Whether the endpoint receives events of this job at this time."""
        is_subscribed = self.tenant_id == tenant_id and self.job_id in (None, job_id)
        return is_subscribed and at_s >= self.since_s


def record_events(connection: sa.Connection, events: Sequence[JobEvent]) -> int:
    """Record messages and watches for `events`; return the number of new deliveries.

    Idempotent: an event that was recorded before adds nothing.
    """
    relevant = [event for event in events if event.state in _RECORDED_STATES]
    if not relevant:
        return 0
    subscriptions = find_subscriptions(
        connection, {e.tenant_id for e in relevant}, {e.job_id for e in relevant}
    )
    matching = [
        e for e in relevant if any(s.matches(e.tenant_id, e.job_id, e.at_s) for s in subscriptions)
    ]
    known = _known_jobs(connection, {event.job_id for event in matching})
    messages = []
    for event in matching:
        if event.job_id not in known:
            continue
        kind, is_deleted = known[event.job_id]
        if event_type := _EVENTS[kind].get(event.state):
            of_job = (event.tenant_id, event.job_id, event.at_s)
            messages.append(job_message((event.event_id, event_type), *of_job, kind=kind))
        if kind is JobKind.BATCH and not is_deleted:
            _watch(connection, event, subscriptions)
    return record_messages(connection, messages, subscriptions)


def record_messages(
    connection: sa.Connection,
    messages: Iterable[WebhookMessage],
    subscriptions: Sequence[Subscription],
) -> int:
    """Add each message that a subscription matches, with its deliveries; return their number."""
    count = 0
    for message in messages:
        matching = [
            subscription
            for subscription in subscriptions
            if message.event_type in subscription.event_types
            and subscription.matches(message.tenant_id, message.job_id, message.at_s)
        ]
        if matching and _add_message(connection, message):
            connection.execute(
                webhook_deliveries.insert(),
                [
                    {
                        "message_id": message.message_id,
                        "endpoint_id": subscription.endpoint_id,
                        "tenant_id": message.tenant_id,
                        "lane": subscription.lane,
                    }
                    for subscription in matching
                ],
            )
            count += len(matching)
    return count


def find_subscriptions(
    connection: sa.Connection, tenant_ids: Iterable[UUID], job_ids: Iterable[UUID]
) -> list[Subscription]:
    """Return the enabled endpoints of tenants and the enabled callbacks of jobs."""
    of_tenants = webhook_endpoints.c.tenant_id.in_(list(tenant_ids))
    # Two queries, an index each: neither reads the callbacks of other jobs, which may be many.
    kinds = (webhook_endpoints.c.job_id.is_(None), webhook_endpoints.c.job_id.in_(list(job_ids)))
    return [
        Subscription(
            row.id,
            row.tenant_id,
            row.job_id,
            row.lane,
            frozenset(row.event_types),
            row.created_at.timestamp(),
        )
        for kind in kinds
        for row in connection.execute(
            sa.select(webhook_endpoints)
            .where(of_tenants, webhook_endpoints.c.disabled_at.is_(None), kind)
            .with_for_update(key_share=True, read=True)  # prevents deletion until the commit
        )
    ]


def watch_running_jobs(connection: sa.Connection, endpoint: sa.Row[Any]) -> None:
    """Watch running jobs from now on, for an endpoint with new subscriptions to watched events."""
    if set(endpoint.event_types) & set(WATCHED_EVENTS):
        connection.execute(_WATCH_RUNNING, {"tenant": endpoint.tenant_id, "endpoint": endpoint.id})


def _known_jobs(connection: sa.Connection, job_ids: set[UUID]) -> dict[UUID, tuple[JobKind, bool]]:
    """Return the kind of each job and whether it was deleted; its end is announced in any case."""
    if not job_ids:
        return {}
    is_deleted = jobs.c.deleted_at.is_not(None)
    query = sa.select(jobs.c.id, jobs.c.kind, is_deleted).where(jobs.c.id.in_(job_ids))
    found = connection.execute(query)
    return {job_id: (JobKind(kind), is_deleted) for job_id, kind, is_deleted in found}


def _watch(
    connection: sa.Connection, event: JobEvent, subscriptions: Sequence[Subscription]
) -> None:
    """Watch a job that begins, or one that ended unwatched, which may have failed items."""
    watched = {ITEM_FAILED} if event.state in STATE_EVENTS else set(WATCHED_EVENTS)
    of_job = (s for s in subscriptions if s.matches(event.tenant_id, event.job_id, event.at_s))
    if any(subscription.event_types & watched for subscription in of_job):
        values: dict[str, Any] = {"job_id": event.job_id, "tenant_id": event.tenant_id}
        connection.execute(insert(webhook_watches).values(values).on_conflict_do_nothing())


def _add_message(connection: sa.Connection, message: WebhookMessage) -> bool:
    added = connection.execute(
        insert(webhook_messages)
        .values(
            id=message.message_id,
            tenant_id=message.tenant_id,
            job_id=message.job_id,
            event_type=message.event_type,
            body=message.body,
        )
        .on_conflict_do_nothing()
        .returning(webhook_messages.c.id)
    )
    return added.one_or_none() is not None
