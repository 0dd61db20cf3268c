"""Which deliveries are tried next: a few of each lane, so that a slow receiver delays no other.

A claim is a lease: `next_try_at` moves to its end, so what a dead process claimed is due again.
Claims are made one process at a time, hence the bounds of a lane hold over all processes. So they
have to be short: they look at lanes that have something due, and wait for no row.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from results.webhooks.delivery.disabled_deliveries import drop_waiting
from results.webhooks.events.messages import ITEM_FAILED
from results.webhooks.tables import DELETED

_LOCK_KEY: Final = 0x77656268  # one claim at a time in one database
_ALONE: Final = sa.text("SELECT pg_advisory_xact_lock(:key)").bindparams(key=_LOCK_KEY)

_FALLEN_DUE_MAX: Final = 1000  # in one claim, the longest due first

FALL_DUE: Final = sa.text("""
WITH waited AS (
    SELECT message_id, endpoint_id FROM webhook_deliveries
    WHERE state = 'pending' AND NOT is_due AND next_try_at <= now()
    ORDER BY next_try_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
UPDATE webhook_deliveries d SET is_due = true FROM waited
WHERE d.message_id = waited.message_id AND d.endpoint_id = waited.endpoint_id
""")
"""What waits for hours, of however many lanes, is looked at when its time has come."""

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
"""Lanes are found by skipping through the index, so a long queue in one costs the others nothing.
One that failed last is tried with one delivery at a time."""

_WANTED: Final = """
WITH wanted AS (
    SELECT d.message_id, d.endpoint_id
    FROM unnest(cast(:messages AS uuid[]), cast(:endpoints AS uuid[]))
        AS t (message_id, endpoint_id)
    JOIN webhook_deliveries d ON d.message_id = t.message_id AND d.endpoint_id = t.endpoint_id
    WHERE d.state = 'pending' AND d.next_try_at <= now()
    FOR UPDATE OF d SKIP LOCKED
)"""

_DROP: Final = sa.text(f"""{_WANTED}
UPDATE webhook_deliveries d SET state = 'dropped', claimed_by = NULL, ended_at = now()
FROM wanted
JOIN webhook_endpoints e ON e.id = wanted.endpoint_id
JOIN webhook_messages m ON m.id = wanted.message_id
LEFT JOIN jobs j ON j.id = m.job_id
WHERE d.message_id = wanted.message_id AND d.endpoint_id = wanted.endpoint_id
    AND (e.disabled_reason = :deleted OR NOT d.is_test AND (
        e.disabled_at IS NOT NULL OR (m.event_type = :item_failed AND j.deleted_at IS NOT NULL)))
RETURNING d.endpoint_id, e.disabled_at IS NOT NULL AS is_disabled
""").bindparams(item_failed=ITEM_FAILED, deleted=DELETED)  # noqa: S608  nothing from outside
"""A message or a replay may be committed just after its endpoint was disabled, or after the batch
was deleted whose items it names. Of a disabled endpoint more may wait than was dropped at once."""

_CLAIM: Final = sa.text(f"""{_WANTED}, claimed AS (
    UPDATE webhook_deliveries d SET claimed_by = :holder, try_count = d.try_count + 1,
        next_try_at = now() + make_interval(secs => :lease_s), is_due = false
    FROM wanted
    WHERE d.message_id = wanted.message_id AND d.endpoint_id = wanted.endpoint_id
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
    AND e.disabled_reason IS DISTINCT FROM :deleted -- since the drop, and it has no URL any more
JOIN webhook_messages m ON m.id = claimed.message_id
LEFT JOIN webhook_callback_secrets s ON s.tenant_id = claimed.tenant_id
""").bindparams(deleted=DELETED)  # noqa: S608


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """A message for an endpoint, claimed for one try."""

    message_id: UUID
    endpoint_id: UUID
    tenant_id: UUID
    lane: str
    try_count: int  # of this try; a later claim has a higher one
    failure_count: int
    is_test: bool
    url: str
    event_type: str
    body: bytes = field(repr=False)
    sealed_secret: bytes = field(repr=False)
    secret_owner: UUID
    sealed_old_secret: bytes | None = field(repr=False)
    now_s: float  # the database's time of the claim
    age_s: float  # of the message
    is_suspect: bool


@dataclass(frozen=True, slots=True)
class ClaimLimits:
    """How many tries a process has room for."""

    slots: int
    suspect_slots: int  # of them, for lanes that failed last
    lane_slots_max: int  # of one lane, over all processes
    tenant_slots_max: int
    busy_tenants: Mapping[UUID, int]
    proven_lanes: Container[str]  # their last try succeeded; others get one try at a time


def claim_deliveries(
    connection: sa.Connection, room: ClaimLimits, *, holder: str, lease_s: float
) -> tuple[list[WebhookDelivery], bool]:
    """Claim what is due, as far as there is room; a transaction of its own.

    Returns also whether to look again at once, as more may be due behind what was looked at.
    """
    connection.execute(_ALONE)
    fallen_count = connection.execute(FALL_DUE, {"limit": _FALLEN_DUE_MAX}).rowcount
    is_more = fallen_count == _FALLEN_DUE_MAX
    due = connection.execute(DUE, {"lane_max": room.lane_slots_max}).all()
    chosen = limit_per_queue(due, room)
    if not chosen:
        return [], is_more
    suspects = {(row.message_id, row.endpoint_id): row.is_suspect for row in chosen}
    wanted = {
        "messages": [row.message_id for row in chosen],
        "endpoints": [row.endpoint_id for row in chosen],
    }
    dropped = connection.execute(_DROP, wanted).all()
    for endpoint_id in {row.endpoint_id for row in dropped if row.is_disabled}:
        drop_waiting(connection, endpoint_id)
    claimed = connection.execute(_CLAIM, {**wanted, "holder": holder, "lease_s": lease_s})
    deliveries = [
        WebhookDelivery(**row._asdict(), is_suspect=suspects[row.message_id, row.endpoint_id])
        for row in claimed
    ]
    return deliveries, is_more or bool(dropped)


def limit_per_queue(due: Sequence[sa.Row[Any]], room: ClaimLimits) -> list[sa.Row[Any]]:
    """Return the first of `due` that fit: in all, of a tenant, and of lanes not known to be well.

    A lane that was not heard of yet may hang, so it gets more than one try only after a success.
    """
    tenants = dict(room.busy_tenants)
    begun: set[str] = set()
    suspects = room.suspect_slots
    chosen: list[sa.Row[Any]] = []
    for row in due:
        if len(chosen) == room.slots:
            break
        if tenants.get(row.tenant_id, 0) >= room.tenant_slots_max:
            continue
        if row.lane not in room.proven_lanes:
            if row.busy or row.lane in begun:
                continue
            begun.add(row.lane)
        if row.is_suspect:
            if suspects <= 0:
                continue
            suspects -= 1
        tenants[row.tenant_id] = tenants.get(row.tenant_id, 0) + 1
        chosen.append(row)
    return chosen


def release_deliveries(connection: sa.Connection, holder: str) -> None:
    """Let others try at once what this process claimed and does not finish."""
    connection.execute(
        sa.text(
            "UPDATE webhook_deliveries SET claimed_by = NULL, next_try_at = now(), is_due = true "
            "WHERE state = 'pending' AND claimed_by = :holder AND next_try_at > now()"
        ),
        {"holder": holder},
    )
