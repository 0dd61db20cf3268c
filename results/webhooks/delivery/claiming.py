"""Claims the next deliveries: a few per delivery queue, so that a slow receiver delays no other.

A delivery queue holds the ordered deliveries of one endpoint, or of a tenant's callbacks to one
host; the column `lane` has its name. A claim is a lease: `next_try_at` moves to its end, so claims
of a dead process become due again. Processes claim one at a time, which makes the limits of a queue
global; therefore claims are short: they read only queues with due deliveries and wait for no row.
The waiting deliveries of a disabled endpoint, maybe a million, are dropped a slice at a time: when
it is disabled, and by every claim that finds more.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import DELETED, webhook_deliveries, webhook_endpoints

PENDING: Final = "pending"
DROPPED: Final = "dropped"

DROP_SLICE: Final = 1000

_LOCK_KEY: Final = 0x77656268  # one claim at a time in one database
_SERIALISE: Final = sa.text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=_LOCK_KEY)

_MARKED_MAX: Final = 1000  # per claim, longest due first

MARK_DUE: Final = sa.text("""
WITH waited AS (
    SELECT message_id, endpoint_id FROM webhook_deliveries
    WHERE state = 'pending' AND NOT is_due AND next_try_at <= now()
    ORDER BY next_try_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE webhook_deliveries d SET is_due = true FROM waited
WHERE d.message_id = waited.message_id AND d.endpoint_id = waited.endpoint_id
""")
"""Marks deliveries whose wait is over, so that claims do not read those that wait for hours."""

DUE: Final = sa.text("""
WITH RECURSIVE found AS (
    (SELECT lane FROM webhook_deliveries WHERE state = 'pending' AND is_due ORDER BY lane LIMIT 1)
    UNION ALL
    SELECT (
        SELECT d.lane FROM webhook_deliveries d
        WHERE d.state = 'pending' AND d.is_due AND d.lane > found.lane ORDER BY d.lane LIMIT 1
    ) FROM found WHERE found.lane IS NOT NULL
), lanes AS (
    SELECT found.lane, coalesce(l.failure_count, 0) > 0 AS is_suspect, (
        SELECT count(*) FROM webhook_deliveries d
        WHERE d.lane = found.lane AND d.claimed_by IS NOT NULL AND d.next_try_at > now()
    ) AS busy
    FROM found LEFT JOIN webhook_lanes l ON l.lane = found.lane
    WHERE found.lane IS NOT NULL AND (l.blocked_until IS NULL OR l.blocked_until <= now())
)
SELECT due.message_id, due.endpoint_id, due.tenant_id, lanes.lane, lanes.busy, lanes.is_suspect
FROM lanes CROSS JOIN LATERAL (
    SELECT message_id, endpoint_id, tenant_id, next_try_at FROM webhook_deliveries d
    WHERE d.lane = lanes.lane AND d.state = 'pending' AND d.is_due AND d.next_try_at <= now()
    ORDER BY d.next_try_at
    LIMIT greatest(0, CASE WHEN lanes.is_suspect THEN 1 ELSE :lane_max END - lanes.busy)
) AS due
ORDER BY lanes.is_suspect, due.next_try_at
""")
"""Finds the queues with a skip scan of the index, so a long queue costs the others nothing. A queue
whose last attempt failed gets one attempt at a time."""

_CHOSEN: Final = """
WITH chosen AS (
    SELECT d.message_id, d.endpoint_id
    FROM unnest(cast(:messages AS uuid[]), cast(:endpoints AS uuid[]))
        AS t (message_id, endpoint_id)
    JOIN webhook_deliveries d ON d.message_id = t.message_id AND d.endpoint_id = t.endpoint_id
    WHERE d.state = 'pending' AND d.next_try_at <= now()
    FOR UPDATE OF d SKIP LOCKED
)"""

_DROP: Final = sa.text(f"""{_CHOSEN}
UPDATE webhook_deliveries d SET state = 'dropped', claimed_by = NULL, ended_at = now()
FROM chosen
JOIN webhook_endpoints e ON e.id = chosen.endpoint_id
JOIN webhook_messages m ON m.id = chosen.message_id
LEFT JOIN jobs j ON j.id = m.job_id
WHERE d.message_id = chosen.message_id AND d.endpoint_id = chosen.endpoint_id
    AND (e.disabled_reason = :deleted OR NOT d.is_test AND (
        e.disabled_at IS NOT NULL OR (m.event_type = :item_failed AND j.deleted_at IS NOT NULL)))
RETURNING d.endpoint_id, e.disabled_at IS NOT NULL AS is_disabled
""").bindparams(item_failed=ITEM_FAILED, deleted=DELETED)  # noqa: S608  no outside input
"""Messages and replays may be committed just after their endpoint was disabled, or after the batch
whose items they name was deleted. Disabling an endpoint drops only a slice of its deliveries."""

_CLAIM: Final = sa.text(f"""{_CHOSEN}, claimed AS (
    UPDATE webhook_deliveries d SET claimed_by = :holder, try_count = d.try_count + 1,
        next_try_at = now() + make_interval(secs => :lease_s), is_due = false
    FROM chosen
    WHERE d.message_id = chosen.message_id AND d.endpoint_id = chosen.endpoint_id
    RETURNING d.message_id, d.endpoint_id, d.tenant_id, d.lane, d.try_count, d.failure_count,
        d.is_test
)
SELECT claimed.*, e.url, m.body, m.event_type,
    coalesce(e.sealed_secret, s.sealed_secret) AS sealed_secret,
    CASE WHEN e.sealed_secret IS NULL THEN s.tenant_id ELSE e.id END AS secret_owner,
    CASE
        WHEN e.sealed_secret IS NOT NULL AND e.old_secret_until > now() THEN e.sealed_old_secret
        WHEN e.sealed_secret IS NULL AND s.old_secret_until > now() THEN s.sealed_old_secret
    END AS sealed_old_secret,
    extract(epoch FROM now())::float8 AS now_s,
    extract(epoch FROM now() - m.created_at)::float8 AS age_s
FROM claimed
JOIN webhook_endpoints e ON e.id = claimed.endpoint_id
    AND e.disabled_reason IS DISTINCT FROM :deleted -- deleted since the drop: without a URL
JOIN webhook_messages m ON m.id = claimed.message_id
LEFT JOIN webhook_callback_secrets s ON s.tenant_id = claimed.tenant_id
""").bindparams(deleted=DELETED)  # noqa: S608


def drop_waiting(connection: sa.Connection, endpoint_id: UUID) -> int:
    """Drop up to DROP_SLICE deliveries of an endpoint if it is disabled; return how many.

    The lock keeps the endpoint disabled meanwhile. Test deliveries, and rows locked by other
    processes, are skipped.
    """
    table, endpoints = webhook_deliveries, webhook_endpoints
    endpoint = connection.execute(
        sa.select(endpoints.c.lane, endpoints.c.job_id)
        .where(endpoints.c.id == endpoint_id, endpoints.c.disabled_at.is_not(None))
        .with_for_update(key_share=True, skip_locked=True)
    ).one_or_none()
    if endpoint is None:
        return 0
    pending = sa.select(table.c.message_id).where(
        table.c.endpoint_id == endpoint_id,
        table.c.state == sa.text(f"'{PENDING}'"),  # a literal, for the partial index
        table.c.is_test.is_(False),
    )
    if endpoint.job_id is None:
        # Ordered by queue, so that no plan scans the history, which is far longer. Callbacks are
        # excepted: they have no history and share the queue of their host.
        pending = pending.where(table.c.lane == endpoint.lane).order_by(table.c.next_try_at)
    waiting = pending.limit(DROP_SLICE).with_for_update(skip_locked=True).cte("waiting")
    dropped = connection.execute(
        sa.update(table)
        .where(table.c.endpoint_id == endpoint_id, table.c.message_id == waiting.c.message_id)
        .values(state=DROPPED, claimed_by=None, ended_at=sa.func.now())
    )
    return dropped.rowcount


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message for an endpoint, claimed for one attempt; field names are those of the columns."""

    message_id: UUID
    endpoint_id: UUID
    tenant_id: UUID
    lane: str  # name of its delivery queue
    try_count: int  # of this attempt; a later claim has a higher one
    failure_count: int
    is_test: bool
    url: str
    event_type: str
    body: bytes = field(repr=False)
    sealed_secret: bytes = field(repr=False)
    secret_owner: UUID
    sealed_old_secret: bytes | None = field(repr=False)
    now_s: float  # time of the claim by the database's clock
    age_s: float  # of the message
    is_suspect: bool  # the last attempt of its queue failed


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """How many attempts a process may start."""

    slots: int
    suspect_slots: int  # of `slots`, for queues whose last attempt failed
    queue_slots_max: int  # of one queue, over all processes
    tenant_slots_max: int
    busy_tenants: Mapping[UUID, int]
    proven_queues: Container[str]  # last attempt succeeded; others get one attempt at a time


def claim_deliveries(
    connection: sa.Connection, limits: ClaimLimits, *, holder: str, lease_s: float
) -> tuple[list[WebhookDelivery], bool]:
    """Claim due deliveries within the limits, in a transaction of its own.

    The second value tells whether to claim again at once, because more may be due.
    """
    connection.execute(_SERIALISE)
    marked_count = connection.execute(MARK_DUE, {"limit": _MARKED_MAX}).rowcount
    is_more = marked_count == _MARKED_MAX
    due = connection.execute(DUE, {"lane_max": limits.queue_slots_max}).all()
    chosen = limit_per_queue(due, limits)
    if not chosen:
        return [], is_more
    suspects = {(row.message_id, row.endpoint_id): row.is_suspect for row in chosen}
    keys = {
        "messages": [row.message_id for row in chosen],
        "endpoints": [row.endpoint_id for row in chosen],
    }
    dropped = connection.execute(_DROP, keys).all()
    for endpoint_id in {row.endpoint_id for row in dropped if row.is_disabled}:
        drop_waiting(connection, endpoint_id)
    claimed = connection.execute(_CLAIM, {**keys, "holder": holder, "lease_s": lease_s})
    deliveries = [
        WebhookDelivery(**row._asdict(), is_suspect=suspects[row.message_id, row.endpoint_id])
        for row in claimed
    ]
    return deliveries, is_more or bool(dropped)


def limit_per_queue(due: Sequence[sa.Row[Any]], limits: ClaimLimits) -> list[sa.Row[Any]]:
    """Return the first of `due` within the limits of process, tenants and unproven queues.

    The receiver of an unproven queue may hang: it gets more than one attempt after a success.
    """
    tenants = dict(limits.busy_tenants)
    started: set[str] = set()
    suspects = limits.suspect_slots
    chosen: list[sa.Row[Any]] = []
    for row in due:
        if len(chosen) == limits.slots:
            break
        if tenants.get(row.tenant_id, 0) >= limits.tenant_slots_max:
            continue
        if row.lane not in limits.proven_queues:
            if row.busy or row.lane in started:
                continue
            started.add(row.lane)
        if row.is_suspect:
            if suspects <= 0:
                continue
            suspects -= 1
        tenants[row.tenant_id] = tenants.get(row.tenant_id, 0) + 1
        chosen.append(row)
    return chosen


def release_deliveries(connection: sa.Connection, holder: str) -> None:
    """Release the unfinished claims of this process, so that others attempt them at once."""
    connection.execute(
        sa.text(
            "UPDATE webhook_deliveries SET claimed_by = NULL, next_try_at = now(), is_due = true "
            "WHERE state = 'pending' AND claimed_by = :holder AND next_try_at > now()"
        ),
        {"holder": holder},
    )
