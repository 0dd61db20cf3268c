"""The deletion log: one append-only row per deletion, with counts and without content."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from sqlalchemy import BigInteger, Column, Connection, Identity, Table, Text, Uuid, func
from sqlalchemy.dialects.postgresql import JSONB

from storage.postgres.metadata import Timestamp, metadata

deletions: Final = Table(
    "deletions",
    metadata,
    Column[int]("id", BigInteger, Identity(), primary_key=True),
    Column[object]("tenant_id", Uuid, nullable=False),
    Column[str]("what", Text, nullable=False, comment="tenancy.deletions.What"),
    Column[object]("subject_id", Uuid, comment="of the file or job; NULL: as many as counted"),
    Column[object]("key_id", Uuid, comment="the API key that asked; NULL: its age did"),
    Column[dict[str, int]]("counts", JSONB, nullable=False, comment="rows and objects by kind"),
    Column[datetime]("created_at", Timestamp, nullable=False, server_default=func.now()),
    comment="Append-only: what was deleted; names nothing that a user wrote",
)


class What(StrEnum):
    """The kind of a deletion."""

    FILE = "file"  # no longer visible
    BATCH = "batch"  # no longer visible
    BATCH_BODIES = "batch_bodies"  # its rows and objects were removed
    TENANT = "tenant"  # with its keys; its data is being removed
    REQUEST = "request"  # a single request is no longer visible
    REQUESTS = "requests"  # single requests were removed with their rows and objects


def record_deletion(
    connection: Connection,
    *,
    tenant_id: UUID,
    what: What,
    subject_id: UUID | None = None,
    key_id: UUID | None = None,
    counts: Mapping[str, int] | None = None,
) -> None:
    """Insert the row, in the transaction of the deletion; without `key_id`, retention asked."""
    connection.execute(
        deletions.insert().values(
            tenant_id=tenant_id,
            what=what.value,
            subject_id=subject_id,
            key_id=key_id,
            counts=dict(counts or {}),
        )
    )
