"""A real job in Postgres, changed by the functions of the roles."""

import json
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa

from core.outcomes import Outcome
from core.states import TERMINAL_STATES, JobState
from jobs.input.line_checks import ErrorCode, LineError
from jobs.leasing import leases
from jobs.leasing.leases import Lease
from jobs.recovery.expiry import close_expired
from jobs.store.batches import NewJob, create_job
from jobs.store.days import job_day
from jobs.store.job_options import JobBudget, JobOptions
from jobs.tables.files import job_inputs
from jobs.tables.jobs import job_counters, jobs
from jobs.validation.append_validator import next_query
from jobs.validation.file_validation import ValidationResult
from jobs.validation.verdicts import (
    APPEND_DUE,
    VALIDATION_DUE,
    record_append_verdict,
    record_verdict,
)
from registry.models import ModelVersion
from results.finaliser.finalisation import READY, finalise
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import run_all
from storage.objects.local_object_store import LocalObjectStore
from storage.postgres.outbox import outbox
from tests.integration.jobs.rows import add_file, claim_lease, outbox_records
from tests.integration.results.outcomes import failed, outcome
from topics.records.catalogue import RESULTS
from topics.records.records import JobClose

MODEL: Final = ModelVersion(
    "small", "1", "pool-small", "simulated", ("/v1/embeddings",), datetime(2026, 1, 1, tzinfo=UTC)
)
_ERRORS: Final = (LineError(ErrorCode.INVALID_JSON_LINE, "Not JSON.", None, 1),)

Operation = Callable[[sa.Connection, UUID, UUID | None], Any]


class RealJob:
    """A job of one tenant."""

    def __init__(self, engine: sa.Engine, store: LocalObjectStore, tenant_id: UUID) -> None:
        self.engine, self.store, self.tenant_id = engine, store, tenant_id
        partitions = DayPartitions(engine)
        self.writer = ItemWriter(engine, partitions)
        self.closer = JobCloser(engine, partitions, slice_items=3)
        self.job_id = UUID(int=0)
        self.line_count = 0  # over all files

    def create(self, count: int, *, sealed: bool, budget: JobBudget) -> None:
        file_id = self.file(count)
        new = NewJob(
            input_file_id=file_id,
            endpoint="/v1/embeddings",
            completion_window="24h",
            options=JobOptions(sealed=sealed, budget=budget),
        )
        with self.engine.begin() as connection:
            self.job_id = create_job(connection, self.tenant_id, new, open_max=10).id

    def file(self, count: int) -> UUID:
        """Store a file with `count` lines."""
        with self.engine.begin() as connection:
            file = add_file(connection, self.tenant_id)
        with self.store.begin_upload(file.object_key) as upload:
            for _ in range(count):
                line = {"custom_id": f"id-{self.line_count}", "body": {"model": "small"}}
                upload.write(json.dumps(line).encode() + b"\n")
                self.line_count += 1
            upload.complete()
        file_id: UUID = file.id
        return file_id

    def control(self, operation: Operation) -> Any:
        """Run an operation of the owner."""
        with self.engine.begin() as connection:
            return operation(connection, self.tenant_id, self.job_id)

    def validate_first(self, count: int, *, is_valid: bool) -> None:
        lease = self._lease("intake", VALIDATION_DUE)
        with self.engine.begin() as connection:
            record_verdict(connection, lease, _result(count, is_valid=is_valid))
        self._release(lease)

    def validate_appended_file(self, count: int, *, is_valid: bool) -> None:
        lease = self._lease("append", APPEND_DUE)
        with self.engine.begin() as connection:
            file = connection.execute(next_query(self.job_id)).one()
            state = record_append_verdict(
                connection, lease, file.number, _result(count, is_valid=is_valid)
            )
        assert state == ("accepted" if is_valid else "refused")
        self._release(lease)

    def write(self, indexes: Sequence[int], kind: Outcome) -> None:
        build = failed if kind is Outcome.FAILED else outcome
        self.writer.write({self.job_id: [build(index) for index in indexes]})

    def closes(self) -> list[JobClose]:
        """Return the close records of the job in the outbox, in order."""
        with self.engine.begin() as connection:
            found = outbox_records(connection, RESULTS, JobClose)
        return [close for close in found if close.job_id == self.job_id]

    def read_close(self) -> None:
        """Relay the oldest close to the results writer."""
        close = self.closes()[0]
        oldest = sa.select(sa.func.min(outbox.c.id)).where(
            outbox.c.key == self.job_id.bytes, outbox.c.topic == RESULTS.name
        )
        with self.engine.begin() as connection:
            connection.execute(sa.delete(outbox).where(outbox.c.id == oldest.scalar_subquery()))
        assert close.day == job_day(self.row().created_at)
        assert run_all(self.closer.close_steps(close), threading.Event())

    def let_expire(self) -> None:
        """End the completion window now."""
        self._update(expires_at=sa.text("now() - interval '1 s'"))

    def sweep(self) -> None:
        with self.engine.begin() as connection:
            close_expired(connection)

    def finalise(self) -> JobState:
        lease = self._lease("finaliser", READY)
        state = finalise(self.engine, self.store, lease, check=lambda: None)
        self._release(lease)
        return state

    def row(self) -> sa.Row[Any]:
        """Return the job with its counters."""
        counted = [c for c in job_counters.c if c.name != "job_id"]
        query = sa.select(*jobs.c, *counted).join(job_counters, job_counters.c.job_id == jobs.c.id)
        with self.engine.connect() as connection:
            return connection.execute(query.where(jobs.c.id == self.job_id)).one()

    def files(self) -> list[tuple[str, int | None]]:
        """Return state and item count of the appended files."""
        columns = job_inputs.c
        query = sa.select(columns.state, columns.item_count).where(columns.job_id == self.job_id)
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(query.order_by(columns.number))]

    def clean_up(self) -> None:
        """Leave no work of this job for later examples."""
        later = sa.text("now() + interval '1 day'")
        open_job = (jobs.c.id == self.job_id, jobs.c.state.not_in(TERMINAL_STATES))
        with self.engine.begin() as connection:
            connection.execute(sa.update(jobs).where(*open_job).values(expires_at=later))
            connection.execute(sa.delete(outbox).where(outbox.c.key == self.job_id.bytes))

    def _lease(self, role: str, where: sa.ColumnElement[bool]) -> Lease:
        with self.engine.begin() as connection:
            return claim_lease(connection, role, sa.and_(where, jobs.c.id == self.job_id))

    def _release(self, lease: Lease) -> None:
        with self.engine.begin() as connection:
            leases.release(connection, lease)

    def _update(self, **columns: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.update(jobs).where(jobs.c.id == self.job_id).values(**columns))


def _result(count: int, *, is_valid: bool) -> ValidationResult:
    return ValidationResult(count, MODEL) if is_valid else ValidationResult(count, None, _ERRORS, 1)
