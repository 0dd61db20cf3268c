"""Database rows of a job in progress, and a check of its result."""

from uuid import UUID

import sqlalchemy as sa

from benchmarks.data.input_files import CHAT
from benchmarks.runs import VoidRunError
from core.ids import new_uuid
from jobs.tables.files import files
from jobs.tables.jobs import job_counters, job_cursors, jobs
from storage.postgres.items import items
from tenancy.tables import tenants


def add_job(engine: sa.Engine, *, total_count: int) -> UUID:
    """Add a job in progress with its tenant, file, cursor and counters."""
    tenant_id, file_id, job_id = new_uuid(), new_uuid(), new_uuid()
    key = f"files/{file_id.hex}"
    with engine.begin() as connection:
        connection.execute(tenants.insert().values(id=tenant_id, name=tenant_id.hex))
        connection.execute(
            files.insert().values(
                id=file_id,
                tenant_id=tenant_id,
                purpose="batch",
                filename="input.jsonl",
                object_key=key,
                size_bytes=0,
                sha256="",
            )
        )
        connection.execute(
            jobs.insert().values(
                id=job_id,
                tenant_id=tenant_id,
                state="in_progress",
                endpoint=CHAT,
                input_file_id=file_id,
                input_key=key,
                input_bytes=0,
                completion_window="24h",
                model="simulated",
                model_version="1",
                pool="simulated",
                total_count=total_count,
                expires_at=sa.text("now() + interval '1 day'"),
            )
        )
        connection.execute(job_cursors.insert().values(job_id=job_id))
        connection.execute(job_counters.insert().values(job_id=job_id))
    return job_id


def check_settled(engine: sa.Engine, job_id: UUID, total_count: int) -> None:
    """Raise VoidRunError unless every item has a row, is counted once, and the job is settled."""
    with engine.connect() as connection:
        rows = connection.scalar(
            sa.select(sa.func.count()).select_from(items).where(items.c.job_id == job_id)
        )
        succeeded = connection.scalar(
            sa.select(job_counters.c.succeeded).where(job_counters.c.job_id == job_id)
        )
        settled_at = connection.scalar(sa.select(jobs.c.settled_at).where(jobs.c.id == job_id))
    if rows != total_count or succeeded != total_count or settled_at is None:
        raise VoidRunError(f"{rows} rows, {succeeded} counted, of {total_count} items")
