"""Locates the results of one batch: its job row, result files and input files."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.states import TERMINAL_STATES, JobState
from jobs.input.input_files import InputFiles, input_files
from jobs.store.batches import find_job
from jobs.store.days import job_day
from jobs.store.files import is_visible
from jobs.tables.files import files


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The key and size of an object."""

    key: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ResultSource:
    """A batch for reading its results; a snapshot of one moment."""

    job: sa.Row[Any]
    inputs: InputFiles
    output: StoredFile | None  # None: not written, never written, or deleted
    error: StoredFile | None

    @property
    def job_id(self) -> UUID:
        """The id of the job."""
        job_id: UUID = self.job.id
        return job_id

    @property
    def tenant_id(self) -> UUID:
        """The id of the owner."""
        tenant_id: UUID = self.job.tenant_id
        return tenant_id

    @property
    def day(self) -> int:
        """The day that selects the partition of its rows."""
        return job_day(self.job.created_at)

    @property
    def total_count(self) -> int:
        """The number of items so far; 0 before validation."""
        return self.job.total_count or 0

    @property
    def ended_count(self) -> int:
        """The number of items with a row, which is the latest sequence."""
        job = self.job
        ended: int = job.succeeded + job.failed + job.cancelled + job.expired
        return ended

    @property
    def is_terminal(self) -> bool:
        """Whether the job is in a terminal state."""
        return JobState(self.job.state) in TERMINAL_STATES


def result_source(connection: sa.Connection, tenant_id: UUID, job_id: UUID | None) -> ResultSource:
    """Return the source of a batch's results. Raises JobNotFoundError, also for foreign ids."""
    job = find_job(connection, tenant_id, job_id)
    inputs = input_files(connection, job)
    stored = _files(connection, [job.output_file_id, job.error_file_id])
    return ResultSource(job, inputs, stored.get(job.output_file_id), stored.get(job.error_file_id))


def _files(connection: sa.Connection, file_ids: list[UUID | None]) -> dict[UUID, StoredFile]:
    """Return those of the files that are visible: deleted ones are not read even if they exist."""
    ids = [file_id for file_id in file_ids if file_id is not None]
    if not ids:
        return {}
    query = sa.select(files.c.id, files.c.object_key, files.c.size_bytes).where(
        files.c.id.in_(ids), is_visible()
    )
    return {row.id: StoredFile(row.object_key, row.size_bytes) for row in connection.execute(query)}
