"""Callbacks: webhook URLs of single jobs, all signed with one secret per tenant."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from core.ids import new_uuid
from results.webhooks.endpoints.receiver_urls import ReceiverUrl
from results.webhooks.endpoints.signing_secrets import SecretCipher, secret_hint
from results.webhooks.events.messages import TERMINAL_EVENTS
from results.webhooks.tables import webhook_callback_secrets, webhook_endpoints

_OVERLAP: Final = sa.text("now() + interval '24 hours'")


@dataclass(frozen=True, slots=True)
class Callback:
    """The URL and event types for one job; the caller has checked the URL's addresses."""

    text: str
    url: ReceiverUrl
    event_types: Sequence[str] = TERMINAL_EVENTS


def add_callback(
    connection: sa.Connection,
    tenant_id: UUID,
    job_id: UUID,
    callback: Callback,
    cipher: SecretCipher,
) -> UUID:
    """Add the callback of a new job in the transaction that creates it; return its endpoint's id.

    All callbacks of a tenant to one host share a delivery queue.
    """
    endpoint_id = new_uuid()
    _ensure_secret(connection, tenant_id, cipher)
    connection.execute(
        webhook_endpoints.insert().values(
            id=endpoint_id,
            tenant_id=tenant_id,
            job_id=job_id,
            name="callback",
            url=callback.text,
            event_types=list(dict.fromkeys(callback.event_types)),
            lane=callback_queue(tenant_id, callback.url),
        )
    )
    return endpoint_id


def callback_queue(tenant_id: UUID, url: ReceiverUrl) -> str:
    """Return the name of the delivery queue of a tenant's callbacks to one host."""
    return f"c:{tenant_id.hex}:{url.origin}"


def rotate_callback_secret(
    connection: sa.Connection, tenant_id: UUID, cipher: SecretCipher, *, keep_old: bool
) -> bytes:
    """Replace the secret that signs a tenant's callbacks and return the new one.

    With `keep_old` the old secret also signs for 24 hours.
    """
    _ensure_secret(connection, tenant_id, cipher)
    table = webhook_callback_secrets
    secret, values = rotated_secret(cipher, tenant_id, table, keep_old=keep_old)
    connection.execute(sa.update(table).where(table.c.tenant_id == tenant_id).values(values))
    return secret


def rotated_secret(
    cipher: SecretCipher, owner: UUID, table: sa.Table, *, keep_old: bool
) -> tuple[bytes, dict[str, object]]:
    """Return a new secret, and the columns of the row of `owner` in `table` that it changes."""
    secret = cipher.new_secret()
    return secret, {
        "sealed_old_secret": table.c.sealed_secret if keep_old else None,
        "old_secret_until": _OVERLAP if keep_old else None,
        "sealed_secret": cipher.encrypt(secret, owner),
        "secret_hint": secret_hint(secret),
    }


def _ensure_secret(connection: sa.Connection, tenant_id: UUID, cipher: SecretCipher) -> None:
    secret = cipher.new_secret()
    connection.execute(
        insert(webhook_callback_secrets)
        .values(
            tenant_id=tenant_id,
            sealed_secret=cipher.encrypt(secret, tenant_id),
            secret_hint=secret_hint(secret),
        )
        .on_conflict_do_nothing()
    )
