"""Files: rows that refer to objects. Deletion hides a file; its object stays while a job reads it.

A file belongs to one tenant and is not found for any other.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobState
from jobs.errors import (
    FileCountLimitError,
    InvalidFieldError,
    StorageLimitError,
    UploadedFileNotFoundError,
)
from jobs.store.keyset_pages import Page, PageCursor, read_page
from jobs.tables.files import files, job_inputs
from jobs.tables.jobs import jobs
from storage.postgres.database_times import seconds
from tenancy.deletions import What, record_deletion
from tenancy.tenants import stored_bytes_max

INPUT_PURPOSE: Final = "batch"
RESULT_PURPOSE: Final = "batch_output"
UPLOAD_PURPOSES: Final = ("assistants", INPUT_PURPOSE, "fine-tune", "vision", "user_data", "evals")

EXPIRES_AFTER_S_MIN: Final = 3600
EXPIRES_AFTER_S_MAX: Final = 30 * 24 * 3600
INPUT_EXPIRES_AFTER_S: Final = EXPIRES_AFTER_S_MAX
"""Lifetime of an input file without an explicit one, in seconds."""

# Literal, so that Postgres recognises the partial index on unfinished jobs.
UNFINISHED: Final = jobs.c.state.in_(
    [sa.literal_column(f"'{state}'") for state in JobState if state not in TERMINAL_STATES]
)


@dataclass(frozen=True, slots=True)
class StorageQuota:
    """Limits on the files of a tenant."""

    bytes_default: int  # for tenants without an own limit
    files_max: int  # uploads of any size; result files do not count


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    """A stored object to be recorded as a file."""

    file_id: UUID
    tenant_id: UUID
    purpose: str
    filename: str
    object_key: str
    size_bytes: int
    sha256: str
    expires_after_s: int | None  # None: until it is deleted


def insert_file(connection: sa.Connection, file: NewFile) -> sa.Row[Any]:
    """Insert the row and return it, without a quota check: result files are always stored."""
    values = asdict(file)
    file_id, after_s = values.pop("file_id"), values.pop("expires_after_s")
    expires_at = None if after_s is None else sa.func.now() + seconds(after_s)
    statement = files.insert().values(id=file_id, expires_at=expires_at, **values)
    return connection.execute(statement.returning(*files.c)).one()


def add_upload(connection: sa.Connection, file: NewFile, quota: StorageQuota) -> sa.Row[Any]:
    """Insert an uploaded file within the quota; concurrent uploads cannot exceed it together.

    Raises FileCountLimitError, StorageLimitError.
    """
    left = stored_bytes_left(connection, file.tenant_id, quota, lock=True)
    if file.size_bytes > left:
        raise StorageLimitError
    return insert_file(connection, file)


def stored_bytes_left(
    connection: sa.Connection, tenant_id: UUID, quota: StorageQuota, *, lock: bool = False
) -> int:
    """Return how many bytes a tenant may still store in one more file; never negative.

    Visible files count, and deleted ones that an unfinished job still reads. Raises
    FileCountLimitError if the tenant has as many uploads as it may have.
    """
    limit_bytes = stored_bytes_max(connection, tenant_id, default=quota.bytes_default, lock=lock)
    upload_count, used_bytes = connection.execute(stored_query(tenant_id)).one()
    if upload_count >= quota.files_max:
        raise FileCountLimitError
    return max(0, limit_bytes - used_bytes)


def find_file(connection: sa.Connection, tenant_id: UUID, file_id: UUID | None) -> sa.Row[Any]:
    """Return the row of a file.

    Raises UploadedFileNotFoundError, also for foreign, deleted and malformed ids.
    """
    row = connection.execute(
        sa.select(files).where(files.c.id == file_id, files.c.tenant_id == tenant_id, is_visible())
    ).one_or_none()
    if row is None:
        raise UploadedFileNotFoundError
    return row


def find_input(connection: sa.Connection, tenant_id: UUID, file_id: UUID | None) -> sa.Row[Any]:
    """Return the row of a job's input file and prevent its deletion until the commit.

    Raises UploadedFileNotFoundError, and InvalidFieldError for a file of another purpose.
    """
    row = connection.execute(
        sa.select(files)
        .where(files.c.id == file_id, files.c.tenant_id == tenant_id, is_visible())
        .with_for_update(read=True)
    ).one_or_none()
    if row is None:
        raise UploadedFileNotFoundError(param="input_file_id")
    if row.purpose != INPUT_PURPOSE:
        raise InvalidFieldError("The file's purpose is not 'batch'.", param="input_file_id")
    return row


def list_files(
    connection: sa.Connection, tenant_id: UUID, cursor: PageCursor, *, purpose: str | None = None
) -> Page:
    """Return a page of the tenant's files. Raises InvalidFieldError."""
    query = listed_query(purpose=purpose)
    return read_page(connection, query, files, tenant_id=tenant_id, cursor=cursor)


def listed_query(*, purpose: str | None = None) -> sa.Select[Any]:
    """Return the query of visible files, of one purpose or any.

    The condition on `removed_at` is redundant; it lets Postgres use the partial index.
    """
    query = sa.select(files).where(is_visible(), files.c.removed_at.is_(None))
    return query if purpose is None else query.where(files.c.purpose == purpose)


def delete_file(
    connection: sa.Connection, tenant_id: UUID, file_id: UUID | None, *, key_id: UUID | None = None
) -> None:
    """Delete a file; jobs that read it continue. Raises UploadedFileNotFoundError.

    The file also expires now, so that the search for expired files finds it. `key_id` is the API
    key of the request.
    """
    deleted = connection.execute(
        sa.update(files)
        .where(files.c.id == file_id, files.c.tenant_id == tenant_id, is_visible())
        .values(deleted_at=sa.func.now(), expires_at=sa.func.now())
    )
    if deleted.rowcount == 0:
        raise UploadedFileNotFoundError
    record_deletion(
        connection, tenant_id=tenant_id, what=What.FILE, subject_id=file_id, key_id=key_id
    )


def is_visible() -> sa.ColumnElement[bool]:
    """Return the condition that a file is visible: neither deleted nor expired."""
    is_unexpired = sa.or_(files.c.expires_at.is_(None), files.c.expires_at > sa.func.now())
    return sa.and_(files.c.deleted_at.is_(None), is_unexpired)


def is_pinned() -> sa.ColumnElement[bool]:
    """Return the condition that an unfinished job reads the file.

    OFFSET 0 forces a look-up per file: otherwise Postgres may hash all files ever appended.
    """
    reading = sa.select(1).where(jobs.c.input_file_id == files.c.id, UNFINISHED)
    columns = job_inputs.c
    appended = sa.select(1).where(
        columns.file_id == files.c.id,
        columns.state.in_([sa.literal_column("'validating'"), sa.literal_column("'accepted'")]),
        columns.job_id == jobs.c.id,
        UNFINISHED,
    )
    return sa.or_(reading.offset(0).exists(), appended.offset(0).exists())


def stored_query(tenant_id: UUID) -> sa.Select[int, int]:
    """Return the query of a tenant's usage: its number of uploads, and the bytes of all its files.

    The condition on `removed_at` is redundant; it lets Postgres use the partial index.
    """
    uploads = sa.func.count().filter(files.c.purpose != RESULT_PURPOSE)
    used_bytes = sa.func.coalesce(sa.func.sum(files.c.size_bytes), 0)
    return sa.select(uploads, sa.cast(used_bytes, sa.BigInteger)).where(
        files.c.tenant_id == tenant_id,
        files.c.removed_at.is_(None),
        sa.or_(is_visible(), is_pinned()),
    )
