"""Validates appended files, those of a job one at a time, in the order of appends.

Each is checked as a first file is, and its ids against those of the files before it: these are read
again, so jobs whose files are large as a whole have a thread of their own, and keep no others up.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy as sa

from core.errors import Disposition, LeaseLostError, MillraceError
from jobs import metrics
from jobs.expansion.emission import InputChangedError
from jobs.input.input_files import InputFile, InputFiles, appended_files
from jobs.input.line_checks import ErrorCode, LineError
from jobs.input.line_reader import Line, custom_id_of, input_lines
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.settings import LINE_BYTES_CEILING, IntakeSettings
from jobs.store.copies import store_copies
from jobs.tables.appended_files import job_inputs
from jobs.tables.jobs import jobs
from jobs.validation.append_verdicts import record_append_verdict
from jobs.validation.file_validation import (
    ExistingItems,
    ValidationResult,
    rejected_file,
    validate_file,
)
from jobs.validation.validator import SMALL_BYTES_MAX
from registry.models import ModelVersion
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_AWAY

_LOG = logging.getLogger(__name__)

ROLE: Final = "append"
"""Under which jobs are leased here: their expansion goes on meanwhile under its own lease."""

_ITS: Final = job_inputs.c
_APPENDED_BYTES: Final = (
    sa.select(sa.func.coalesce(sa.func.sum(_ITS.size_bytes), 0))
    .where(_ITS.job_id == jobs.c.id, _ITS.state.in_(["validating", "accepted"]))
    .correlate(jobs)
    .scalar_subquery()
)
SMALL: Final = jobs.c.input_bytes + _APPENDED_BYTES <= SMALL_BYTES_MAX
"""Jobs of which all that a verdict may read is little."""

_ANY_WAITS: Final = sa.select(
    sa.exists().where(_ITS.state == sa.literal_column("'validating'"))  # as the partial index says
)


class AppendValidator:
    """Judges what was appended. Used by one thread."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        leases: ActiveLeases,
        settings: IntakeSettings,
        queue: LeaseQueue,
        stop: threading.Event,
    ) -> None:
        """`leases` are of `ROLE`, and `queue` claims them, for jobs that are `APPEND_DUE`.

        What is unfinished at `stop` begins anew elsewhere.
        """
        self._engine, self._objects, self._leases = engine, objects, leases
        self._settings, self._stop = settings, stop
        self._queue = queue

    def step(self) -> None:
        """Judge files until none waits. Raises one of DATABASE_AWAY."""
        while not self._stop.is_set() and self._any_waits():
            claimed = self._queue.claim(1)
            if not claimed:
                return
            (lease,) = claimed
            try:
                self._judge(lease)
            except BaseException:
                self._leases.let_expire(lease)
                raise

    def _any_waits(self) -> bool:
        with self._engine.begin() as connection:
            return bool(connection.scalar(_ANY_WAITS))

    def _judge(self, lease: Lease) -> None:
        """The process loop of one job: whatever fails, it is put aside alone and others go on."""
        try:
            self._judge_next(lease)
        except LeaseLostError:
            self._leases.let_expire(lease)
        except DATABASE_AWAY:
            raise
        except MillraceError as failure:
            if failure.disposition is Disposition.CRASH:
                _LOG.exception("a file cannot be judged", extra={"job": lease.job_id.hex})
            self._put_aside(lease, failure.code)
        except Exception:  # noqa: BLE001  the process loop of one job
            _LOG.exception("a file cannot be judged", extra={"job": lease.job_id.hex})
            self._put_aside(lease, "internal")

    def _judge_next(self, lease: Lease) -> None:
        job_id = lease.job_id
        with self._engine.begin() as connection:
            job = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).one()
            file = connection.execute(next_query(job_id)).one_or_none()
            before = InputFiles(job.input_key, appended_files(connection, [job_id]).get(job_id, ()))
        state = None
        if file is not None and job.total_count is not None:
            verdict = self._verdict(lease, job, file.object_key, before)
            if job.deduplicate and not verdict.error_count:
                files = [*before, InputFile(file.object_key, job.total_count)]
                store_copies(self._engine, lease, files, lambda key: self._checked(key, lease))
            with self._engine.begin() as connection:
                state = record_append_verdict(connection, lease, file.number, verdict)
        self._leases.release(lease)
        if state is not None:
            metrics.FILES_APPENDED.labels(state).inc()

    def _verdict(
        self, lease: Lease, job: sa.Row[Any], key: str, before: InputFiles
    ) -> ValidationResult:
        def read_lines() -> Iterable[Line]:
            return self._lines(key, lease, self._settings.line_bytes_max)

        def read_ids() -> Iterator[str]:
            for file in before:
                for index, (_, _, line) in enumerate(self._checked(file.key, lease)):
                    yield _custom_id(line, file.first_index + index)

        try:
            return validate_file(
                read_lines,
                endpoint=job.endpoint,
                items_max=self._settings.job_items_max,
                line_bytes_max=self._settings.line_bytes_max,
                find_model=_no_other_model,
                earlier=ExistingItems(job.model, job.total_count, read_ids),
            )
        except ObjectMissingError:
            message = "The content of an input file is gone."
            return rejected_file(LineError(ErrorCode.FILE_NOT_FOUND, message, "input_file_id"))

    def _put_aside(self, lease: Lease, code: str) -> None:
        metrics.JOB_FAILURES.inc()
        _LOG.error("a job was put aside", extra={"job": lease.job_id.hex, "code": code})
        self._leases.let_expire(lease)

    def _checked(self, key: str, lease: Lease) -> Iterator[Line]:
        """Yield the lines of a file that was found valid, as long as they were then."""
        return self._lines(key, lease, LINE_BYTES_CEILING)

    def _lines(self, key: str, lease: Lease, line_bytes_max: int) -> Iterator[Line]:
        """Yield a file's lines. Raises LeaseLostError once another has the job, or at a stop."""
        with self._objects.read(key) as blocks:
            yield from input_lines(self._while_held(blocks, lease), line_bytes_max=line_bytes_max)

    def _while_held(self, blocks: Iterable[bytes], lease: Lease) -> Iterator[bytes]:
        for block in blocks:
            if self._stop.is_set():
                raise LeaseLostError(job_id=lease.job_id)
            self._leases.raise_if_lost(lease)
            yield block


def _custom_id(line: bytes | None, index: int) -> str:
    """Return the id in a line that was found valid. Raises InputChangedError."""
    try:
        return custom_id_of(line or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputChangedError(index=index) from None


def next_query(job_id: UUID) -> sa.Select[Any]:
    """Return the query of the file that is next of a job."""
    its = job_inputs.c
    query: sa.Select[Any] = sa.select(its.number, its.object_key)
    return (
        query.where(its.job_id == job_id, its.state == "validating").order_by(its.number).limit(1)
    )


def _no_other_model(_: str) -> ModelVersion | None:
    """A job has its model; a line that names another is refused before this is asked."""
    return None
