"""Removes all data of deleted tenants, in slices that may be repeated.

    cancel open jobs ─► tombstones of ended jobs ─► delete files, saved answers, webhooks
    ─► [other removals take their rows and objects] ─► mark as erased ─► remove the tenant's row

Requests that were being served at the deletion may still add data, so a tenant counts as erased
only a while after it. The usage ledger, the record of deletions and the audit log stay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobKind, JobState
from jobs.store.job_closing import cancel_owned_job
from jobs.tables.files import files
from jobs.tables.idempotency import idempotency_keys
from jobs.tables.jobs import jobs
from results.retention.deletion import BatchTombstones
from results.retention.expired_data import SLICE, delete_files
from results.webhooks.endpoints.endpoints import delete_endpoints
from results.webhooks.tables import (
    webhook_callback_secrets,
    webhook_endpoints,
    webhook_messages,
)
from storage.postgres.database_times import seconds
from tenancy.tables import api_keys, tenants
from tenancy.tenant_deletion import delete_keys

ERASED_AFTER_S: Final = 3600.0
"""Time after the deletion in which requests and jobs may still add data."""

_SLICES_MAX: Final = 50  # of each kind in one run
_SLICE_ROWS: Final = 100

_DELETED_TENANTS: Final = sa.select(tenants.c.id).where(
    tenants.c.deleted_at.is_not(None), tenants.c.erased_at.is_(None)
)
_TERMINAL: Final = [state.value for state in TERMINAL_STATES]


@dataclass(frozen=True, slots=True)
class TenantErasure:
    """Any number of processes may run."""

    engine: sa.Engine
    tombstones: BatchTombstones
    is_stopping: Callable[[], bool] = lambda: False

    def run_once(self, *, erased_after_s: float = ERASED_AFTER_S) -> None:
        """Run a bounded number of slices. Raises one of DATABASE_UNAVAILABLE."""
        with self.engine.connect() as connection:
            if connection.execute(_DELETED_TENANTS.limit(1)).first() is None:
                return
        self._run_slices(_cancel_open_jobs)
        self.tombstones.run_once(_ended_jobs_query())
        for work in (_delete_files, _forget_answers, _delete_endpoints, _delete_messages):
            self._run_slices(work)
        with self.engine.begin() as connection:
            delete_keys(connection, api_keys.c.tenant_id.in_(_DELETED_TENANTS))
            callback_secrets = sa.delete(webhook_callback_secrets)
            connection.execute(callback_secrets.where(_of_deleted(webhook_callback_secrets)))
        with self.engine.begin() as connection:
            _mark_erased(connection, erased_after_s)

    def remove_rows(self) -> None:
        """Remove the rows of tenants of which nothing is left, not even a tombstone."""
        with self.engine.begin() as connection:
            connection.execute(sa.delete(tenants).where(tenants.c.erased_at.is_not(None), _NO_ROWS))

    def _run_slices(self, work: Callable[[sa.Connection], int]) -> None:
        for _ in range(_SLICES_MAX):
            if self.is_stopping():
                return
            with self.engine.begin() as connection:
                count = work(connection)
            if not count:
                return


def _of_deleted(table: sa.Table) -> sa.ColumnElement[bool]:
    return table.c.tenant_id.in_(_DELETED_TENANTS)


def _cancel_open_jobs(connection: sa.Connection) -> int:
    closed = [*_TERMINAL, JobState.CANCELLING.value]
    found = connection.execute(
        sa.select(jobs.c.id, jobs.c.tenant_id, jobs.c.kind)
        .where(_of_deleted(jobs), jobs.c.state.not_in(closed), jobs.c.close_reason.is_(None))
        .order_by(jobs.c.id)
        .limit(_SLICE_ROWS)
    ).all()
    for row in found:
        cancel_owned_job(connection, row.tenant_id, row.id, JobKind(row.kind))
    return len(found)


def _ended_jobs_query() -> sa.Select[Any]:
    return (
        sa.select(jobs)
        .where(_of_deleted(jobs), jobs.c.deleted_at.is_(None), jobs.c.state.in_(_TERMINAL))
        .order_by(jobs.c.created_at)
        .limit(SLICE)
    )


def _delete_files(connection: sa.Connection) -> int:
    """Delete files; one that a job still reads keeps its object until the job has ended."""
    return delete_files(connection, sa.and_(_of_deleted(files), files.c.deleted_at.is_(None)))


def _forget_answers(connection: sa.Connection) -> int:
    """Expire idempotency keys, and the names of files whose bytes were removed before."""
    place = (idempotency_keys.c.tenant_id, idempotency_keys.c.scope, idempotency_keys.c.key)
    alive = sa.and_(_of_deleted(idempotency_keys), idempotency_keys.c.expires_at > sa.func.now())
    slice_ = sa.select(*place).where(alive).limit(_SLICE_ROWS)
    expired = connection.execute(
        sa.update(idempotency_keys)
        .where(sa.tuple_(*place).in_(slice_))
        .values(body=None, expires_at=sa.func.now())
    )
    named = sa.select(files.c.id).where(
        _of_deleted(files), files.c.removed_at.is_not(None), files.c.filename != ""
    )
    unnamed = connection.execute(
        sa.update(files).where(files.c.id.in_(named.limit(_SLICE_ROWS))).values(filename="")
    )
    return expired.rowcount + unnamed.rowcount


def _delete_endpoints(connection: sa.Connection) -> int:
    """Delete endpoints and callbacks; the role `webhooks` removes their rows."""
    return delete_endpoints(connection, _of_deleted(webhook_endpoints), limit=_SLICE_ROWS)


def _delete_messages(connection: sa.Connection) -> int:
    """Delete messages of events with their deliveries and attempts."""
    found = sa.select(webhook_messages.c.id).where(_of_deleted(webhook_messages))
    query = sa.delete(webhook_messages).where(webhook_messages.c.id.in_(found.limit(_SLICE_ROWS)))
    return connection.execute(query).rowcount


def _mark_erased(connection: sa.Connection, after_s: float) -> None:
    """Mark tenants of which only tombstones are left: rows of ids, times and counts."""
    left = (
        _exists(jobs, sa.or_(jobs.c.deleted_at.is_(None), jobs.c.removal_due_at.is_not(None))),
        _exists(files, files.c.removed_at.is_(None)),
        _exists(idempotency_keys, sa.true()),
        _exists(webhook_endpoints, sa.true()),
        _exists(webhook_messages, sa.true()),
        _exists(api_keys, sa.true()),
    )
    connection.execute(
        sa.update(tenants)
        .where(
            tenants.c.erased_at.is_(None),
            tenants.c.deleted_at < sa.func.now() - seconds(after_s),
            sa.not_(sa.or_(*left)),
        )
        .values(erased_at=sa.func.now())
    )


def _exists(table: sa.Table, where: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    return sa.exists(sa.select(1).where(table.c.tenant_id == tenants.c.id, where))


_NO_ROWS: Final = sa.not_(
    sa.or_(
        *(
            _exists(table, sa.true())
            for table in (jobs, files, webhook_endpoints, webhook_callback_secrets, api_keys)
        )
    )
)
