"""Appends files to an open job, and seals it so that it accepts no more files."""

from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs.errors import InvalidFieldError, JobSealedError
from jobs.store.batches import find_job
from jobs.store.control_state import lock_open_job
from jobs.store.files import INPUT_PURPOSE, find_input
from jobs.store.job_closing import lock_counters, settle_if_complete
from jobs.store.outbox import NOTIFY_JOBS, NOTIFY_OUTBOX
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs

APPENDED_MAX: Final = 100
"""Limit of appended files per job: the ids of each are compared with those of all before it."""


def append_file(
    connection: sa.Connection, tenant_id: UUID, job_id: UUID | None, file_id: UUID | None
) -> sa.Row[Any]:
    """Append an input file to a job; its items count once the file is validated.

    Raises JobNotFoundError, JobNotOpenError, JobSealedError, UploadedFileNotFoundError,
    InvalidFieldError.
    """
    row = lock_open_job(connection, tenant_id, job_id, "append to")
    if row.sealed:
        raise JobSealedError
    file = find_input(connection, tenant_id, file_id)
    if file.purpose != INPUT_PURPOSE:
        raise InvalidFieldError("The file's purpose is not 'batch'.", param="input_file_id")
    columns = job_inputs.c
    last = (
        connection.scalar(sa.select(sa.func.max(columns.number)).where(columns.job_id == row.id))
        or 0
    )
    if last == APPENDED_MAX:
        raise InvalidFieldError(
            f"At most {APPENDED_MAX} files can be appended.", param="input_file_id"
        )
    connection.execute(
        job_inputs.insert().values(
            job_id=row.id,
            number=last + 1,
            file_id=file.id,
            object_key=file.object_key,
            size_bytes=file.size_bytes,
        )
    )
    connection.execute(NOTIFY_JOBS)
    return find_job(connection, tenant_id, job_id)


def seal_job(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> sa.Row[Any]:
    """Seal a job; a sealed job does not change. Files appended before still count.

    Raises JobNotFoundError, JobNotOpenError.
    """
    find_job(
        connection, tenant_id, job_id
    )  # before locking: a job of another tenant must not be locked
    lock_counters(connection, job_id)
    row = lock_open_job(connection, tenant_id, job_id, "seal")
    if not row.sealed:
        connection.execute(
            sa.update(jobs)
            .where(jobs.c.id == row.id)
            .values(sealed=True, total_final=not has_unvalidated(connection, row.id))
        )
        settle_if_complete(connection, row.id)
        connection.execute(NOTIFY_OUTBOX)
        connection.execute(NOTIFY_JOBS)
    return find_job(connection, tenant_id, job_id)


def has_unvalidated(connection: sa.Connection, job_id: UUID) -> bool:
    """Whether an appended file has no verdict yet. The caller has locked the job."""
    columns = job_inputs.c
    waiting = sa.exists().where(columns.job_id == job_id, columns.state == "validating")
    return bool(connection.scalar(sa.select(waiting)))
