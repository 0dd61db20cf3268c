"""Progress and failed items of watched jobs, told from the counters that the writer commits.

The counters are the outbox: the cursor of a watch moves in the transaction that adds the message,
so each mark is told once, and a crash forgets nothing. The results writer pays nothing for it.
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
    FailedItem,
    WebhookMessage,
    crossed_percents,
    job_message,
    shown_items,
)
from results.webhooks.tables import webhook_watches

_JOBS_MAX: Final = 200  # of one transaction

_FIRST: Final = UUID(int=0)  # before every job

_DUE: Final = sa.text("""
SELECT w.job_id, w.tenant_id, w.percent, w.failed_count, w.failed_at, w.failed_index,
    j.created_at, j.total_count, j.total_final, c.succeeded, c.failed, c.cancelled, c.expired,
    n.ended_count,
    j.settled_at IS NOT NULL OR j.state = ANY(:terminal) AS is_over,
    w.announced_at IS NULL OR w.announced_at <= now() - make_interval(secs => :pause_s) AS may_tell,
    extract(epoch FROM now())::float8 AS now_s
FROM webhook_watches w
JOIN jobs j ON j.id = w.job_id
JOIN job_counters c ON c.job_id = w.job_id
CROSS JOIN LATERAL (
    SELECT c.succeeded + c.failed + c.cancelled + c.expired AS ended_count,
        (SELECT min(mark) FROM unnest(cast(:marks AS int[])) AS mark WHERE mark > w.percent) AS mark
) AS n
WHERE w.closed_at IS NULL AND w.job_id > :behind AND (
    (j.total_final AND j.total_count > 0
        AND 100::bigint * n.ended_count >= n.mark::bigint * j.total_count)
    OR j.settled_at IS NOT NULL OR j.state = ANY(:terminal)
    OR (w.failed_count < c.failed AND (
        w.announced_at IS NULL OR w.announced_at <= now() - make_interval(secs => :pause_s)))
)
ORDER BY w.job_id LIMIT :jobs_max
FOR UPDATE OF w SKIP LOCKED
""").bindparams(sa.bindparam("behind", type_=sa.Uuid))
"""Watches with news: of others nothing is written, however their jobs move."""

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
    """Looks at watched jobs; several processes share them."""

    engine: sa.Engine
    pause_s: float  # between two `item.failed` of a job
    on_deliveries: Callable[[], None]
    is_stopping: Callable[[], bool] = lambda: False

    def run_once(self) -> None:
        """Tell what is new: look at each job once, or until `is_over`. Raises one of DATABASE_AWAY.

        Jobs that run move on all the time, so that who looked until nothing is new never paused.
        """
        behind: UUID | None = _FIRST
        while behind is not None and not self.is_stopping():
            behind = self._some(behind)

    def _some(self, behind: UUID) -> UUID | None:
        """Tell what is new of the next jobs; return the last one, None when there are no more."""
        # One snapshot for counters and items, or an item could be told before it is counted.
        engine = self.engine.execution_options(isolation_level="REPEATABLE READ")
        with engine.begin() as connection:
            parameters = {
                "terminal": [state.value for state in TERMINAL_STATES],
                "pause_s": self.pause_s,
                "jobs_max": _JOBS_MAX,
                "behind": behind,
                "marks": list(PERCENTS),
            }
            watches = connection.execute(_DUE, parameters).all()
            count = self._tell(connection, watches) if watches else 0
        if count:
            self.on_deliveries()
        return watches[-1].job_id if len(watches) == _JOBS_MAX else None

    def _tell(self, connection: sa.Connection, watches: Sequence[sa.Row[Any]]) -> int:
        listeners = find_subscriptions(
            connection, {w.tenant_id for w in watches}, {w.job_id for w in watches}
        )
        messages: list[WebhookMessage] = []
        for watch in watches:
            changes: dict[str, Any] = {}
            messages += _progress(watch, changes)
            if watch.failed > watch.failed_count and watch.may_tell:
                messages.append(_failed(connection, watch, changes))
            if watch.is_over and changes.get("failed_count", watch.failed_count) >= watch.failed:
                changes["closed_at"] = sa.func.now()
            if changes:
                connection.execute(
                    sa.update(webhook_watches)
                    .where(webhook_watches.c.job_id == watch.job_id)
                    .values(changes | {"ended_count": watch.ended_count})
                )
        return record_messages(connection, messages, listeners)


def _progress(watch: sa.Row[Any], changes: dict[str, Any]) -> list[WebhookMessage]:
    if not watch.total_final:
        return []  # a share of what may still grow would be told too early, and once for good
    percents = crossed_percents(watch.percent, watch.ended_count, watch.total_count or 0)
    if percents:
        changes["percent"] = percents[-1]
    counts = {
        name: getattr(watch, name) for name in ("succeeded", "failed", "cancelled", "expired")
    }
    return [
        job_message(
            (new_uuid(), PROGRESS),
            watch.tenant_id,
            watch.job_id,
            watch.now_s,
            {"percent": percent, "total": watch.total_count, **counts},
        )
        for percent in percents
    ]


def _failed(
    connection: sa.Connection, watch: sa.Row[Any], changes: dict[str, Any]
) -> WebhookMessage:
    """Name the first failed items that are new, count all of them, and move behind the last."""
    place = {"day": job_day(watch.created_at), "job": watch.job_id}
    behind = {"at": watch.failed_at, "index": watch.failed_index, "items_max": ITEMS_MAX}
    rows = connection.execute(_FAILED, place | behind).all()
    last = connection.execute(_LAST_FAILED, place).one_or_none()
    changes |= {"failed_count": watch.failed, "announced_at": sa.func.now()}
    if last is not None:
        changes |= {"failed_at": last.finished_at, "failed_index": last.item_index}
    ours = {
        "failed_count": watch.failed - watch.failed_count,
        "failed_total": watch.failed,
        "items": shown_items([FailedItem(row.item_index, row.custom_id) for row in rows]),
    }
    return job_message((new_uuid(), ITEM_FAILED), watch.tenant_id, watch.job_id, watch.now_s, ours)
