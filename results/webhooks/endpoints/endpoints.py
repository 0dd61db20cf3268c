"""Webhook endpoints for their owners: create, change, rotate, delete, in the caller's transaction.

An endpoint belongs to one tenant; other tenants cannot see that it exists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.ids import new_uuid
from jobs.errors import InvalidFieldError, InvalidRequestError
from jobs.store.keyset_pages import Page, PageCursor, read_page
from jobs.tables.jobs import jobs
from results.webhooks.delivery.claiming import PENDING, drop_waiting
from results.webhooks.endpoints.callbacks import callback_queue, rotated_secret
from results.webhooks.endpoints.receiver_urls import parse_url
from results.webhooks.endpoints.signing_secrets import SecretCipher, secret_hint
from results.webhooks.events.message_recording import watch_running_jobs
from results.webhooks.events.messages import EVENT_TYPES
from results.webhooks.tables import DELETED, webhook_deliveries, webhook_endpoints, webhook_lanes
from tenancy.tables import tenants

ENDPOINT: Final = "whe"
"""Prefix of the public ids of endpoints."""

NAME_CHARS_MAX: Final = 256
_IS_KEPT: Final = webhook_endpoints.c.disabled_reason.is_distinct_from(DELETED)


class EndpointNotFoundError(InvalidRequestError):
    """No such webhook endpoint."""

    code = "webhook_endpoint_not_found"


@dataclass(frozen=True, slots=True)
class EndpointChange:
    """New values of an endpoint's fields, each checked; None leaves a field unchanged."""

    name: str | None = None
    url: str | None = None  # parsed, and its addresses checked, by the caller
    event_types: Sequence[str] | None = None
    enabled: bool | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises InvalidFieldError."""
        if self.name is not None and not 0 < len(self.name) <= NAME_CHARS_MAX:
            raise InvalidFieldError(
                f"The name must have 1 to {NAME_CHARS_MAX} characters.", param="name"
            )
        if self.name is not None and "\x00" in self.name:
            raise InvalidFieldError("The character U+0000 is not allowed.", param="name")
        if self.event_types is not None:
            check_event_types(self.event_types, param="event_types")


def check_event_types(event_types: Sequence[str], *, param: str) -> None:
    """Raise InvalidFieldError unless there is at least one type and all are known."""
    if not event_types or not set(event_types) <= set(EVENT_TYPES):
        raise InvalidFieldError(f"Give one or more of {', '.join(EVENT_TYPES)}.", param=param)


def create_endpoint(
    connection: sa.Connection,
    tenant_id: UUID,
    new: EndpointChange,
    cipher: SecretCipher,
    *,
    endpoints_max: int,
) -> tuple[sa.Row[Any], bytes]:
    """Add an endpoint; return it with its secret. Raises InvalidFieldError above `endpoints_max`.

    `new` must have a name, a URL and event types.
    """
    assert new.name is not None
    assert new.url is not None
    assert new.event_types is not None
    connection.execute(
        sa.select(tenants.c.id).where(tenants.c.id == tenant_id).with_for_update(key_share=True)
    )
    count = connection.scalar(
        sa.select(sa.func.count()).where(
            webhook_endpoints.c.tenant_id == tenant_id,
            webhook_endpoints.c.job_id.is_(None),
            _IS_KEPT,
        )
    )
    if (count or 0) >= endpoints_max:
        raise InvalidFieldError(f"There are {endpoints_max} endpoints already; delete one first.")
    endpoint_id, secret = new_uuid(), cipher.new_secret()
    row = connection.execute(
        webhook_endpoints.insert()
        .values(
            id=endpoint_id,
            tenant_id=tenant_id,
            name=new.name,
            url=new.url,
            event_types=list(dict.fromkeys(new.event_types)),
            lane=f"e:{endpoint_id.hex}",
            sealed_secret=cipher.encrypt(secret, endpoint_id),
            secret_hint=secret_hint(secret),
        )
        .returning(webhook_endpoints)
    ).one()
    watch_running_jobs(connection, row)
    return row, secret


def find_endpoint(
    connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None
) -> sa.Row[Any]:
    """Return an endpoint or callback. Raises EndpointNotFoundError, also for foreign ids."""
    return _require(
        connection,
        sa.select(webhook_endpoints).where(
            _shown(tenant_id), webhook_endpoints.c.id == endpoint_id
        ),
    )


def find_callback(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Return the callback of a job. Raises EndpointNotFoundError: none, foreign, or deleted."""
    if job_id is None:  # in SQL it would match every endpoint that is no callback
        raise EndpointNotFoundError
    of_job = webhook_endpoints.c.job_id == job_id
    return _require(connection, sa.select(webhook_endpoints).where(_shown(tenant_id), of_job))


def list_endpoints(connection: sa.Connection, tenant_id: UUID, cursor: PageCursor) -> Page:
    """Return a page of endpoints, newest first, without callbacks. Raises InvalidFieldError."""
    query = sa.select(webhook_endpoints).where(webhook_endpoints.c.job_id.is_(None), _IS_KEPT)
    return read_page(connection, query, webhook_endpoints, tenant_id=tenant_id, cursor=cursor)


def change_endpoint(
    connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None, change: EndpointChange
) -> sa.Row[Any]:
    """Apply `change` and return the endpoint. Raises EndpointNotFoundError.

    A new URL also enables the endpoint and applies to waiting deliveries. Disabling drops a slice
    of the waiting deliveries; later claims drop the others.
    """
    row = _locked(connection, tenant_id, endpoint_id)
    values: dict[str, object] = {}
    if change.name is not None and change.name != row.name:
        values["name"] = change.name
    if change.url is not None and change.url != row.url:
        values["url"] = change.url
        if row.job_id is not None:
            values["lane"] = _move_callback(connection, row, change.url)
    if change.event_types is not None and set(change.event_types) != set(row.event_types):
        values["event_types"] = list(dict.fromkeys(change.event_types))
    is_enabled = row.disabled_at is None
    if change.enabled is False and is_enabled:
        values |= {"disabled_at": sa.func.now(), "disabled_reason": "owner"}
    if (change.enabled or "url" in values) and change.enabled is not False:
        lane = values.get("lane", row.lane)
        connection.execute(sa.delete(webhook_lanes).where(webhook_lanes.c.lane == lane))
        if not is_enabled:
            values |= {"disabled_at": None, "disabled_reason": None}
    if not values:
        return row
    changed = _update(connection, row.id, values)
    if changed.disabled_at is not None and is_enabled:
        drop_waiting(connection, row.id)
    if "event_types" in values or (changed.disabled_at is None and not is_enabled):
        watch_running_jobs(connection, changed)
    return changed


_ERASED: Final[dict[str, Any]] = {
    "name": "",
    "url": "",
    "sealed_secret": None,
    "secret_hint": "",
    "sealed_old_secret": None,
    "old_secret_until": None,
    "disabled_at": sa.func.coalesce(webhook_endpoints.c.disabled_at, sa.func.now()),
    "disabled_reason": DELETED,
}
"""Columns of an endpoint that is deleted."""


def delete_endpoint(connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None) -> None:
    """Hide an endpoint and its history for good, and erase its URL and secrets.

    `MessageRemoval` deletes its rows, maybe millions. Raises EndpointNotFoundError.
    """
    row = _locked(connection, tenant_id, endpoint_id)
    connection.execute(sa.delete(webhook_lanes).where(webhook_lanes.c.lane == row.lane))
    _update(connection, row.id, _ERASED)


def delete_endpoints(
    connection: sa.Connection, where: sa.ColumnElement[bool], *, limit: int
) -> int:
    """Delete a slice of endpoints and callbacks like `delete_endpoint`; return how many.

    It reads no column with a URL or a secret.
    """
    columns = webhook_endpoints.c
    found = connection.execute(
        sa.select(columns.id, columns.lane)
        .where(where, columns.disabled_reason.is_distinct_from(DELETED))
        .order_by(columns.id)
        .limit(limit)
    ).all()
    lanes, ids = [row.lane for row in found], [row.id for row in found]
    connection.execute(sa.delete(webhook_lanes).where(webhook_lanes.c.lane.in_(lanes)))
    connection.execute(
        sa.update(webhook_endpoints)
        .where(columns.id.in_(ids))
        .values(updated_at=sa.func.now(), **_ERASED)
    )
    return len(found)


def rotate_secret(
    connection: sa.Connection,
    tenant_id: UUID,
    endpoint_id: UUID | None,
    cipher: SecretCipher,
    *,
    keep_old: bool,
) -> tuple[sa.Row[Any], bytes]:
    """Replace the secret of an endpoint; with `keep_old` the old one also signs for 24 hours.

    Raises EndpointNotFoundError, also for callbacks, whose secret belongs to the tenant.
    """
    row = _locked(connection, tenant_id, endpoint_id)
    if row.sealed_secret is None:
        raise EndpointNotFoundError
    secret, values = rotated_secret(cipher, row.id, webhook_endpoints, keep_old=keep_old)
    changed = _update(connection, row.id, values)
    return changed, secret


def _move_callback(connection: sa.Connection, row: sa.Row[Any], url: str) -> str:
    """Move waiting deliveries of a callback to the queue of its new host; return that queue."""
    lane = callback_queue(row.tenant_id, parse_url(url, allow_private=True))
    connection.execute(
        sa.update(webhook_deliveries)
        .where(
            webhook_deliveries.c.endpoint_id == row.id,
            webhook_deliveries.c.state == PENDING,
            webhook_deliveries.c.is_test.is_(False),
        )
        .values(lane=lane)
    )
    return lane


def _update(connection: sa.Connection, endpoint_id: UUID, values: dict[str, object]) -> sa.Row[Any]:
    return connection.execute(
        sa.update(webhook_endpoints)
        .where(webhook_endpoints.c.id == endpoint_id)
        .values(updated_at=sa.func.now(), **values)
        .returning(webhook_endpoints)
    ).one()


def _locked(connection: sa.Connection, tenant_id: UUID, endpoint_id: UUID | None) -> sa.Row[Any]:
    """Lock an endpoint; other transactions can still insert rows that refer to it."""
    query = sa.select(webhook_endpoints).where(
        _shown(tenant_id), webhook_endpoints.c.id == endpoint_id
    )
    return _require(connection, query.with_for_update(key_share=True))


def _require(connection: sa.Connection, query: sa.Select[Any]) -> sa.Row[Any]:
    row = connection.execute(query).one_or_none()
    if row is None:
        raise EndpointNotFoundError
    return row


def _shown(tenant_id: UUID) -> sa.ColumnElement[bool]:
    """Exclude deleted endpoints, and callbacks of deleted batches, which still receive the end."""
    is_job_deleted = sa.exists().where(
        jobs.c.id == webhook_endpoints.c.job_id, jobs.c.deleted_at.is_not(None)
    )
    return sa.and_(webhook_endpoints.c.tenant_id == tenant_id, _IS_KEPT, ~is_job_deleted)
