"""Finalises settled single requests, many at once; they have no output files.

    find settled requests ─► delete inputs ─► [one transaction] states, events

The answer stays in the item's row or in the object that the row names. Nothing is written outside
the transaction, so no lease is needed: concurrent processes only repeat deletions.
"""

import logging
import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.errors import Disposition, MillraceError
from core.object_names import ANSWERS
from core.states import TERMINAL_STATES, CloseReason, JobKind, JobState
from jobs.store.outbox import event_insert
from jobs.store.removable_objects import group_keys_by_job
from jobs.store.single_requests import JOB_DAY
from jobs.tables.jobs import jobs
from results import metrics
from results.finaliser.finalisation import is_settled
from storage.objects.object_store import ObjectStore
from storage.postgres.items import items
from storage.postgres.outbox import NOTIFY_OUTBOX

LOG = logging.getLogger(__name__)

CHANNEL: Final = "millrace_requests"

ROUND_MAX: Final = 200
"""Requests per round: its transaction takes some ten milliseconds."""

_CANDIDATE_ROUNDS: Final = 8
"""A round chooses from this many times its size, so that processes seldom choose the same."""

_DELETE_THREADS: Final = 8  # a store answers in tens of milliseconds
_FAILURES_MAX: Final = 8  # of a round: each costs a thread the seconds of its retries

SETTLED: Final = is_settled(JobKind.REQUEST)
"""Requests whose item has its row."""

_TARGET: Final = sa.case(
    (jobs.c.state == JobState.CANCELLING.value, JobState.CANCELLED.value),
    (jobs.c.close_reason == CloseReason.EXPIRED.value, JobState.EXPIRED.value),
    else_=JobState.COMPLETED.value,
)


@dataclass(frozen=True, slots=True)
class RequestFinaliser:
    """Finalises requests; any number of processes may run."""

    engine: sa.Engine
    store: ObjectStore
    choose: Callable[[Sequence[sa.Row[Any]], int], list[sa.Row[Any]]] = random.sample
    """Chooses a number of rows; random, so that processes choose different ones."""

    def run_once(self) -> None:
        """Finalise all settled requests. Raises one of DATABASE_UNAVAILABLE.

        While the object store is unavailable the answers can be read; only the terminal state is
        late.
        """
        while self._round():
            pass

    def _round(self) -> bool:
        """Finalise one round; return whether to run another."""
        with self.engine.connect() as connection:
            found = connection.execute(settled_query(_CANDIDATE_ROUNDS * ROUND_MAX)).all()
        if not found:
            return False
        if len(found) > ROUND_MAX:
            found = self.choose(found, ROUND_MAX)
        failed: list[UUID] = []  # requests whose input the store did not delete
        delete = partial(self._delete_input, failed=failed)
        with ThreadPoolExecutor(min(_DELETE_THREADS, len(found)), "requests") as threads:
            deleted = list(threads.map(delete, found))
        cleared = [row.id for row, is_deleted in zip(found, deleted, strict=True) if is_deleted]
        with self.engine.begin() as connection:
            states = finalise_requests(connection, cleared)
        for state in states:
            metrics.JOBS_TERMINAL.labels(state).inc()
        return len(cleared) == ROUND_MAX and bool(states)

    def _delete_input(self, row: sa.Row[Any], *, failed: list[UUID]) -> bool:
        """Delete the input; False when the store is unavailable and the job has to wait.

        After `_FAILURES_MAX` failures of a round the others wait for the next round untried.
        """
        if len(failed) >= _FAILURES_MAX:
            return False
        try:
            self.store.delete(row.input_key)
        except MillraceError as failure:
            LOG.warning("an input stays", extra={"job": row.id.hex, "code": failure.code})
            if failure.disposition is Disposition.RETRY:
                failed.append(row.id)
                return False
        return True


def settled_query(limit: int) -> sa.Select[Any]:
    """Return the query of requests to finalise, oldest first."""
    columns = (jobs.c.id, jobs.c.input_key)
    return sa.select(*columns).where(SETTLED).order_by(jobs.c.created_at).limit(limit)


def unreferenced_answers(connection: sa.Connection, keys: Collection[str]) -> set[str]:
    """Return the oversized answers of terminal requests that their rows do not name.

    They belong to executions that did not count, or were meant for a caller that died.
    """
    by_job = group_keys_by_job(keys, ANSWERS)
    days = set(connection.scalars(sa.select(JOB_DAY).where(jobs.c.id.in_(by_job))))
    item_row = sa.and_(
        items.c.job_day.in_(days), items.c.job_id == jobs.c.id, items.c.item_index == 0
    )
    ended = (
        sa.select(jobs.c.id, items.c.body_key)
        .select_from(jobs.join(items, item_row))
        .where(
            jobs.c.id.in_(by_job),
            jobs.c.kind == JobKind.REQUEST.value,
            jobs.c.state.in_(TERMINAL_STATES),
        )
    )
    return {
        key for job_id, kept in connection.execute(ended) for key in by_job[job_id] if key != kept
    }


def finalise_requests(connection: sa.Connection, job_ids: Sequence[UUID]) -> list[str]:
    """Move settled requests to their terminal states and announce them; return the states."""
    if not job_ids:
        return []
    locked = (
        sa.select(jobs.c.id)
        .where(jobs.c.id.in_(job_ids), SETTLED)
        .with_for_update(skip_locked=True, key_share=True)
        .order_by(jobs.c.id)
    )
    ended = connection.execute(
        sa.update(jobs)
        .where(jobs.c.id.in_(connection.scalars(locked).all()))
        .values(
            state=_TARGET,
            completed_at=_at(JobState.COMPLETED),
            expired_at=_at(JobState.EXPIRED),
            cancelled_at=_at(JobState.CANCELLED),
        )
        .returning(jobs.c.id, jobs.c.tenant_id, jobs.c.state, sa.extract("epoch", sa.func.now()))
    ).all()
    for job_id, tenant_id, state, now_s in ended:
        connection.execute(event_insert(job_id, tenant_id, JobState(state), float(now_s)))
    if ended:
        connection.execute(NOTIFY_OUTBOX)
    return [row.state for row in ended]


def _at(state: JobState) -> sa.ColumnElement[Any]:
    return sa.case({state.value: sa.func.now()}, value=_TARGET, else_=None)
