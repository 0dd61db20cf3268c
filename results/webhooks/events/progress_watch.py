"""Creates `batch.progress` and `item.failed` messages of watched jobs from committed counters.

The counters serve as the outbox: the cursor of a watch moves in the transaction that adds the
message, so each mark is announced once and a crash loses none, at no cost for the results writer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import new_uuid
from core.states import TERMINAL_STATES
from jobs.store.days import job_day
from results.webhooks.events.message_recording import find_subscriptions, record_messages
from results.webhooks.events.messages import (
    ITEM_FAILED,
    ITEMS_MAX,
    PERCENTS,
    PROGRESS,
    WebhookMessage,
    crossed_percents,
    job_message,
    shown_items,
)
from results.webhooks.events.progress_estimates import EstimateOf
from results.webhooks.tables import webhook_watches

_JOBS_MAX: Final = 200  # per transaction

_FIRST: Final = UUID(int=0)  # before every job

_DUE: Final = sa.text("""
SELECT w.job_id, w.tenant_id, w.percent, w.failed_count, w.failed_at, w.failed_index,
    j.created_at, j.total_count, j.total_final, c.succeeded, c.failed, c.cancelled, c.expired,
    n.ended_count,
    j.settled_at IS NOT NULL OR j.state = ANY(:terminal) AS has_ended,
    w.announced_at IS NULL OR w.announced_at <= now() - make_interval(secs => :pause_s)
        AS may_announce,
    extract(epoch FROM now())::float8 AS now_s
FROM webhook_watches w
JOIN jobs j ON j.id = w.job_id
JOIN job_counters c ON c.job_id = w.job_id
CROSS JOIN LATERAL (
    SELECT c.succeeded + c.failed + c.cancelled + c.expired AS ended_count,
        (SELECT min(mark) FROM unnest(cast(:marks AS int[])) AS mark WHERE mark > w.percent) AS mark
) AS n
WHERE w.closed_at IS NULL AND w.job_id > :after AND (
    (j.total_final AND j.total_count > 0
        AND 100::bigint * n.ended_count >= n.mark::bigint * j.total_count)
    OR j.settled_at IS NOT NULL OR j.state = ANY(:terminal)
    OR (w.failed_count < c.failed AND (
        w.announced_at IS NULL OR w.announced_at <= now() - make_interval(secs => :pause_s)))
)
ORDER BY w.job_id LIMIT :jobs_max
FOR UPDATE OF w SKIP LOCKED
""").bindparams(sa.bindparam("after", type_=sa.Uuid))
"""Watches with something to announce; the others are not written, however their jobs progress."""

_FAILED: Final = sa.text("""
SELECT item_index, custom_id FROM items
WHERE job_day = :day AND job_id = :job AND outcome = 2
    AND (finished_at, item_index) > (coalesce(:at, '-infinity'::timestamptz), :index)
ORDER BY finished_at, item_index LIMIT :items_max
""")

_LAST_FAILED: Final = sa.text("""
SELECT finished_at, item_index FROM items
WHERE job_day = :day AND job_id = :job AND outcome = 2
ORDER BY finished_at DESC, item_index DESC LIMIT 1
""")


@dataclass(slots=True)
class ProgressWatcher:
    """Polls watched jobs; any number of processes may run."""

    engine: sa.Engine
    pause_s: float  # between two `item.failed` messages of a job
    on_deliveries: Callable[[], None]
    is_stopping: Callable[[], bool] = lambda: False
    start_estimates: Callable[[], EstimateOf] = lambda: lambda *_: {}
    """Called for each transaction: returns what estimates the jobs in it."""

    def run_once(self) -> None:
        """Announce changes of each watched job once. Raises one of DATABASE_UNAVAILABLE.

        One pass only: running jobs change all the time, so repeating until nothing changes would
        never pause.
        """
        after: UUID | None = _FIRST
        while after is not None and not self.is_stopping():
            after = self._announce_slice(after)

    def _announce_slice(self, after: UUID) -> UUID | None:
        """Announce changes of the next jobs; return the last one, None at the end."""
        # One snapshot for counters and items: else an item could be announced before it is counted.
        engine = self.engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.begin() as connection:
            parameters = {
                "terminal": [state.value for state in TERMINAL_STATES],
                "pause_s": self.pause_s,
                "jobs_max": _JOBS_MAX,
                "after": after,
                "marks": list(PERCENTS),
            }
            watches = connection.execute(_DUE, parameters).all()
            count = self._announce(connection, watches) if watches else 0
        if count:
            self.on_deliveries()
        return watches[-1].job_id if len(watches) == _JOBS_MAX else None

    def _announce(self, connection: sa.Connection, watches: Sequence[sa.Row[Any]]) -> int:
        subscriptions = find_subscriptions(
            connection, {w.tenant_id for w in watches}, {w.job_id for w in watches}
        )
        messages: list[WebhookMessage] = []
        estimate = self.start_estimates()
        for watch in watches:
            changes: dict[str, Any] = {}
            messages += _progress(connection, watch, changes, estimate)
            if watch.failed > watch.failed_count and watch.may_announce:
                messages.append(_failed(connection, watch, changes))
            if watch.has_ended and changes.get("failed_count", watch.failed_count) >= watch.failed:
                changes["closed_at"] = sa.func.now()
            if changes:
                connection.execute(
                    sa.update(webhook_watches)
                    .where(webhook_watches.c.job_id == watch.job_id)
                    .values(changes | {"ended_count": watch.ended_count})
                )
        return record_messages(connection, messages, subscriptions)


def _progress(
    connection: sa.Connection, watch: sa.Row[Any], changes: dict[str, Any], estimate: EstimateOf
) -> list[WebhookMessage]:
    if not watch.total_final:
        return []  # the total may still grow, and a mark is announced only once
    percents = crossed_percents(watch.percent, watch.ended_count, watch.total_count or 0)
    if percents:
        changes["percent"] = percents[-1]
    counts = {
        name: getattr(watch, name) for name in ("succeeded", "failed", "cancelled", "expired")
    }
    estimated = estimate(connection, watch.job_id) if percents else {}
    return [
        job_message(
            (new_uuid(), PROGRESS),
            watch.tenant_id,
            watch.job_id,
            watch.now_s,
            {"percent": percent, "total": watch.total_count, **counts, **estimated},
        )
        for percent in percents
    ]


def _failed(
    connection: sa.Connection, watch: sa.Row[Any], changes: dict[str, Any]
) -> WebhookMessage:
    """Return a message with the first new failed items and the count of all; move the cursor."""
    job = {"day": job_day(watch.created_at), "job": watch.job_id}
    cursor = {"at": watch.failed_at, "index": watch.failed_index, "items_max": ITEMS_MAX}
    rows = connection.execute(_FAILED, job | cursor).all()
    last = connection.execute(_LAST_FAILED, job).one_or_none()
    changes |= {"failed_count": watch.failed, "announced_at": sa.func.now()}
    if last is not None:
        changes |= {"failed_at": last.finished_at, "failed_index": last.item_index}
    extension = {
        "failed_count": watch.failed - watch.failed_count,
        "failed_total": watch.failed,
        "items": shown_items((row.item_index, row.custom_id) for row in rows),
    }
    return job_message(
        (new_uuid(), ITEM_FAILED), watch.tenant_id, watch.job_id, watch.now_s, extension
    )
