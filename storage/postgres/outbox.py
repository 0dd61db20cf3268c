"""The transactional outbox: records that are committed with their cause and sent by the relay.

Intake moves the rows to the log (`jobs.outbox_relay`). Packages below it, such as the registry,
insert their records here as well.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import Timestamp, metadata

outbox: Final = sa.Table(
    "outbox",
    metadata,
    sa.Column[int]("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column[str]("topic", sa.Text, nullable=False, comment="without the installation's prefix"),
    sa.Column[int]("partition", sa.Integer, nullable=False),
    sa.Column[bytes]("key", sa.LargeBinary),
    sa.Column[object]("headers", JSONB, nullable=False),
    sa.Column[bytes]("value", sa.LargeBinary),
    sa.Column[datetime]("created_at", Timestamp, nullable=False, server_default=sa.func.now()),
    comment="Records committed with their cause; the relay deletes a row once it is on the log",
)

NOTIFY_OUTBOX: Final = sa.text("SELECT pg_notify('millrace_outbox', '')")
"""Notifies the relay when the transaction commits."""


def record_insert(
    topic: str,
    *,
    partition: int,
    key: bytes,
    headers: Iterable[tuple[str, bytes]],
    value: bytes,
) -> sa.Insert:
    """Return the statement that inserts an encoded record; `topic` is without its prefix.

    It returns no id: a database role that may insert rows may not read the rows of other tenants.
    """
    values = outbox.insert().values(
        topic=topic,
        partition=partition,
        key=key,
        headers=[[name, text.decode()] for name, text in headers],
        value=value,
    )
    return values.inline()
