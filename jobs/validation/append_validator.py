"""Validates appended files, those of a job one at a time, in the order of appends.

Each file is checked like a first file, and its ids against those of the files before it. These are
read again, so jobs with much input have their own thread and do not delay other jobs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from jobs import metrics
from jobs.input.input_files import InputFile, input_files
from jobs.input.line_reader import Line
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.ordering.stored_orders import record_order
from jobs.settings import LINE_BYTES_CEILING
from jobs.store.copies import store_copies
from jobs.tables.files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult
from jobs.validation.pinned_models import ModelsAtCreation, pinned_models
from jobs.validation.validation_task import ExistingFiles
from jobs.validation.validator import MEDIUM_BYTES_MAX, LeasedValidation
from jobs.validation.verdicts import record_append_verdict
from storage.postgres.engines import autocommit

ROLE: Final = "append"
"""The lease role; the expansion of the job continues under its own lease."""

_INPUTS: Final = job_inputs.c
_APPENDED_BYTES: Final = (
    sa.select(sa.func.coalesce(sa.func.sum(_INPUTS.size_bytes), 0))
    .where(_INPUTS.job_id == jobs.c.id, _INPUTS.state.in_(["validating", "accepted"]))
    .correlate(jobs)
    .scalar_subquery()
)
SMALL: Final = jobs.c.input_bytes + _APPENDED_BYTES <= MEDIUM_BYTES_MAX
"""Jobs whose files are small or medium: little input to read for a verdict."""

_ANY_WAITS: Final = sa.select(
    # Literal, so that Postgres recognises the partial index.
    sa.exists().where(_INPUTS.state == sa.literal_column("'validating'"))
)


@dataclass(frozen=True, slots=True)
class AppendValidator:
    """Validates appended files. Used by one thread.

    A validation unfinished at its `stop` starts anew in another intake.
    """

    engine: sa.Engine
    queue: LeaseQueue  # of jobs that are `APPEND_DUE`
    validation: LeasedValidation  # with leases of `ROLE`

    def run_once(self) -> None:
        """Validate files until none waits. Raises one of DATABASE_UNAVAILABLE."""
        while not self.validation.stop.is_set() and self._any_waits():
            claimed = self.queue.claim(1)
            if not claimed:
                return
            (lease,) = claimed
            try:
                self.validation.run(lease, self._validate_next, "a file cannot be judged")
            except BaseException:  # whatever failed, no lease may outlive it
                self.validation.leases.let_expire(lease)
                raise

    def _any_waits(self) -> bool:
        with autocommit(self.engine) as connection:
            return bool(connection.scalar(_ANY_WAITS))

    def _validate_next(self, lease: Lease) -> None:
        job_id = lease.job_id
        with self.engine.begin() as connection:
            job = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
            file = connection.execute(next_query(job_id)).one_or_none()
            before = input_files(connection, job)
        state = order = None
        if file is not None and job.total_count is not None:
            files = [*before, InputFile(file.object_key, job.total_count, file.size_bytes)]
            result = self._validate(lease, job, files)
            if job.deduplicate and not result.error_count:
                store_copies(self.engine, lease, files, lambda key: self._read_valid(key, lease))
            order = self.validation.store_order(lease, files[-1], file.number, result)
            with self.engine.begin() as connection:
                state = record_append_verdict(connection, lease, file.number, result, order)
        self.validation.leases.release(lease)
        if state is not None:
            metrics.FILES_APPENDED.labels(state).inc()
        if state == "accepted" and order is not None:
            record_order(job_id, order)

    def _validate(
        self, lease: Lease, job: sa.Row[Any], files: Sequence[InputFile]
    ) -> ValidationResult:
        first_indexes = tuple(file.first_index for file in files[:-1])
        return self.validation.validate(
            lease,
            files,
            endpoint=job.endpoint,
            find_model=ModelsAtCreation(self.engine, job.tenant_id, job.created_at).find,
            existing=ExistingFiles(pinned_models(job), job.total_count, first_indexes),
        )

    def _read_valid(self, key: str, lease: Lease) -> Iterator[Line]:
        """Yield the lines of a validated file; the line limit may have been higher then."""
        return self.validation.read_lines(lease, key, LINE_BYTES_CEILING)


def next_query(job_id: UUID) -> sa.Select[Any]:
    """Return the query of the next file of a job to validate."""
    query: sa.Select[Any] = sa.select(_INPUTS.number, _INPUTS.object_key, _INPUTS.size_bytes)
    is_waiting = (_INPUTS.job_id == job_id, _INPUTS.state == "validating")
    return query.where(*is_waiting).order_by(_INPUTS.number).limit(1)
