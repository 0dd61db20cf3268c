"""Inserts the rows and builds the input lines that the API would have stored."""

import json
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from core.errors import MillraceError
from core.ids import new_uuid
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.store.days import job_day
from jobs.store.files import NewFile, insert_file
from jobs.tables.jobs import job_counters, job_cursors, jobs
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks
from storage.postgres.outbox import outbox
from tenancy.tables import tenants
from topics.records.catalogue import Topic
from topics.records.codec import R, decode


def execute(engine: sa.Engine, statement: sa.Executable | str) -> None:
    """Execute a statement in its own transaction."""
    with engine.begin() as connection:
        connection.execute(sa.text(statement) if isinstance(statement, str) else statement)


def add_tenant(connection: sa.Connection) -> UUID:
    tenant_id = new_uuid()
    connection.execute(tenants.insert().values(id=tenant_id, name=tenant_id.hex))
    return tenant_id


def add_file(connection: sa.Connection, tenant_id: UUID, **fields: Any) -> sa.Row[Any]:
    """Insert the row of an input file, by default under a key of its own."""
    file_id = new_uuid()
    given: dict[str, Any] = {
        "file_id": file_id,
        "tenant_id": tenant_id,
        "purpose": "batch",
        "filename": "in.jsonl",
        "object_key": f"files/{file_id.hex}",
        "size_bytes": 0,
        "sha256": "",
        "expires_after_s": None,
    }
    return insert_file(connection, NewFile(**(given | fields)))


def add_job(connection: sa.Connection, tenant_id: UUID, **columns: Any) -> UUID:
    """Add a job with its file, cursor and counters; `columns` are of `jobs`."""
    job_id: UUID = columns.pop("id", None) or new_uuid()
    key = str(columns.pop("input_key", f"files/{job_id.hex}"))
    cursor: dict[str, int] = columns.pop("cursor", {})
    counters: dict[str, int] = columns.pop("counters", {})
    object_key = key if job_id.hex in key else f"{key}.{job_id.hex}"  # unique
    file_id = add_file(connection, tenant_id, object_key=object_key).id
    defaults = {
        "id": job_id,
        "tenant_id": tenant_id,
        "endpoint": "/v1/embeddings",
        "input_file_id": file_id,
        "input_key": key,
        "input_bytes": 0,
        "completion_window": "24h",
        "expires_at": sa.text("now() + interval '1 day'"),
    }
    connection.execute(jobs.insert().values(**(defaults | columns)))
    connection.execute(job_cursors.insert().values(job_id=job_id, **cursor))
    connection.execute(job_counters.insert().values(job_id=job_id, **counters))
    return job_id


def add_running_job(connection: sa.Connection, tenant_id: UUID, count: int, **columns: Any) -> UUID:
    """Add a job of `count` items in progress, of the model `small`."""
    running: dict[str, Any] = {
        "input_key": "in",
        "state": "in_progress",
        "model": "small",
        "model_version": "1",
        "pool": "pool-small",
        "total_count": count,
    }
    return add_job(connection, tenant_id, **(running | columns))


def add_item_row(connection: sa.Connection, job_id: UUID, *indexes: int) -> None:
    """Add rows of succeeded items, with their partition."""
    day = job_day(job_row(connection, job_id).created_at)
    connection.execute(
        sa.text(
            f"CREATE TABLE IF NOT EXISTS items_{day} PARTITION OF items "
            f"FOR VALUES FROM ({day}) TO ({day + 1})"
        )
    )
    for index in indexes:
        connection.execute(
            sa.text(
                "INSERT INTO items (job_id, job_day, item_index, outcome, status_code, attempt, "
                "input_tokens, output_tokens, cached_tokens, reasoning_tokens) "
                "VALUES (:job, :day, :index, 1, 200, 1, 0, 0, 0, 0)"
            ),
            {"job": job_id, "day": day, "index": index},
        )


def job_row(connection: sa.Connection, job_id: UUID) -> sa.Row[Any]:
    return connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()


def database_now(connection: sa.Connection) -> datetime:
    now: datetime = connection.scalar(sa.text("SELECT clock_timestamp()"))
    return now


def without_guards(connection: sa.Connection) -> None:
    """Disable triggers for the rest of the transaction, so that it may change the past."""
    connection.execute(sa.text("SET LOCAL session_replication_role = replica"))


def input_line(index: int) -> bytes:
    request = {
        "custom_id": f"id-{index}",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": "small", "input": f"text {index}"},
    }
    return json.dumps(request).encode()


def outbox_records(connection: sa.Connection, topic: Topic, kind: type[R]) -> list[R]:
    """Return the records that wait for a topic, in order; all are of one kind."""
    query = sa.select(outbox).where(outbox.c.topic == topic.name).order_by(outbox.c.id)
    return [
        decode(kind, row.value, [(name, text.encode()) for name, text in row.headers])
        for row in connection.execute(query)
    ]


def claim_lease(
    connection: sa.Connection, role: str, where: sa.ColumnElement[bool], *, holder: str = "a"
) -> Lease:
    """Claim a lease of a minute on the only job that satisfies `where`."""
    (lease,) = leases.claim(connection, role=role, holder=holder, ttl_s=60, limit=1, where=where)
    return lease


def database_away(*_: object, **__: object) -> Any:
    """Raise what a statement raises while Postgres is unavailable."""
    raise OperationalError("the database is away", {}, Exception())


def fail_reads(
    patch: pytest.MonkeyPatch, objects: LocalObjectStore, key: str, failure: type[MillraceError]
) -> None:
    """Let each read of one object raise `failure`."""
    read = objects.read

    def failing(read_key: str, **given: Any) -> ObjectBlocks:
        if read_key == key:
            raise failure
        return read(read_key, **given)

    patch.setattr(objects, "read", failing)
