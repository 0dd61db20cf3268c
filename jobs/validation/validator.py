"""Validates the first files of jobs in a thread pool; larger files may use fewer of the threads.

A thread validates a small file itself, and lets a process validate a larger one.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import sqlalchemy as sa

from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from core.states import JobState
from jobs import metrics
from jobs.input.input_files import InputFile
from jobs.input.line_checks import ErrorCode, LineError
from jobs.input.line_reader import Line, input_lines
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.job_backoff import JobBackoff
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.ordering.ordered_files import new_order_key, write_order
from jobs.ordering.stored_orders import StoredOrder, record_order
from jobs.settings import LINE_BYTES_CEILING, IntakeSettings
from jobs.store.copies import store_copies
from jobs.tables.jobs import jobs
from jobs.validation.byte_count import ByteCount
from jobs.validation.feasibility import Feasibility
from jobs.validation.file_validation import ValidationResult
from jobs.validation.model_rule import FindModel
from jobs.validation.pinned_models import ModelsAtCreation
from jobs.validation.validating_files import FirstPool
from jobs.validation.validation_process import ValidationProcesses
from jobs.validation.validation_task import ExistingFiles, ValidationTask
from jobs.validation.verdicts import VALIDATION_DUE, record_verdict
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LOG = logging.getLogger(__name__)
SMALL_BYTES_MAX: Final = 256 * 1024
"""Largest small file; about 2,000 short prompts, which take 25 ms."""

MEDIUM_BYTES_MAX: Final = 8 * 1024 * 1024
"""Largest medium file; about 60,000 short prompts, which take a second."""

_SIZES: Final = (
    jobs.c.input_bytes <= SMALL_BYTES_MAX,
    sa.and_(jobs.c.input_bytes > SMALL_BYTES_MAX, jobs.c.input_bytes <= MEDIUM_BYTES_MAX),
    jobs.c.input_bytes > MEDIUM_BYTES_MAX,
)
"""The size classes of files, the smallest first."""


class Validator:
    """Claims jobs that wait for validation, as many as can start at once."""

    def __init__(
        self,
        engine: sa.Engine,
        validation: "LeasedValidation",
        clock: Clock,
        feasibility: Feasibility | None = None,
    ) -> None:
        """An unfinished validation starts anew in another intake.

        Without `feasibility` each valid job is accepted.
        """
        self._engine = engine
        self._validation = validation
        self._feasibility = feasibility
        self._settings = validation.settings
        self._queues = [
            LeaseQueue(engine, validation.leases, sa.and_(VALIDATION_DUE, size), clock)
            for size in _SIZES
        ]
        self._threads = ThreadPoolExecutor(validation.settings.validation_threads, "validation")
        self._claiming = threading.Lock()
        self._lock = threading.Lock()
        self._running = [0] * len(_SIZES)  # by size class

    def claim(self) -> int:
        """Start as many validations as possible now; return how many.

        The intake loop calls it, and each thread that becomes free.
        """
        count = 0
        with self._claiming:
            for size, slots in self._free_slots():
                for lease in self._queues[size].claim(slots):
                    with self._lock:
                        self._running[size] += 1
                    self._threads.submit(self._run, lease, size)
                    count += 1
        return count

    def close(self) -> None:
        """Wait for the threads, which check `stop` at each block."""
        self._threads.shutdown(cancel_futures=True)

    def _free_slots(self) -> Iterator[tuple[int, int]]:
        """Yield each size class with its free slots; none once the role stops.

        Large files come first: otherwise a stream of small ones would starve them.
        """
        classes = () if self._validation.stop.is_set() else reversed(range(len(_SIZES)))
        for size in classes:
            with self._lock:
                free = free_slots(self._settings.validation_threads, self._running, size)
            yield size, free

    def _run(self, lease: Lease, size: int) -> None:
        try:
            with metrics.VALIDATION_SECONDS.time():
                self._validation.run(lease, self._validate, "validation failed")
        except DATABASE_UNAVAILABLE as failure:
            self._validation.set_aside(lease, type(failure).__name__)
        finally:
            with self._lock:
                self._running[size] -= 1
        with contextlib.suppress(*DATABASE_UNAVAILABLE):
            self.claim()

    def _validate(self, lease: Lease) -> None:
        with self._engine.begin() as connection:
            job = connection.execute(
                sa.select(
                    jobs.c.tenant_id,
                    jobs.c.created_at,
                    jobs.c.endpoint,
                    jobs.c.input_key,
                    jobs.c.input_bytes,
                    jobs.c.deduplicate,
                ).where(jobs.c.id == lease.job_id)
            ).one()
        file = InputFile(job.input_key, 0, job.input_bytes)
        models = ModelsAtCreation(self._engine, job.tenant_id, job.created_at)
        find_model = models.find
        if job.input_bytes > SMALL_BYTES_MAX:  # others have their verdict as soon as a pool
            find_model = FirstPool(self._engine, lease.job_id, find_model).find
        result = self._validation.validate(
            lease, [file], endpoint=job.endpoint, find_model=find_model
        )
        copies = 0
        if job.deduplicate and not result.error_count:
            read = partial(
                self._validation.read_lines, lease, line_bytes_max=self._settings.line_bytes_max
            )
            copies = store_copies(self._engine, lease, [file], read)
        if self._feasibility is not None:
            result = self._feasibility.assess(lease.job_id, result, copies)
        order = self._validation.store_order(lease, file, 0, result)
        with self._engine.begin() as connection:
            state = record_verdict(connection, lease, result, order)
            # In this transaction, so that the notification of the verdict finds the job unleased.
            self._validation.leases.release_in(connection, lease)
        if state is JobState.FAILED:
            metrics.JOBS_REFUSED.inc()
        if state is JobState.IN_PROGRESS and order is not None:
            record_order(lease.job_id, order)


def free_slots(threads: int, running: Sequence[int], size: int) -> int:
    """Return how many validations of a size class may start.

    Large files may use a quarter of the threads, large and medium ones half of them. Validating a
    small file is mostly waiting for Postgres; a larger one keeps a core busy. `running` counts the
    validations of each class.
    """
    limits = (threads, max(min(threads, 2), threads // 2), max(1, threads // 4))
    return max(0, min(limits[k] - sum(running[k:]) for k in range(size + 1)))


@dataclass(frozen=True, slots=True)
class LeasedValidation:
    """Reads and validates files while their lease is held and the role runs. Thread-safe."""

    objects: ObjectStore
    leases: ActiveLeases
    settings: IntakeSettings
    stop: threading.Event  # ends reading; another intake then starts the validation anew
    processes: ValidationProcesses
    body_limits: BodyLimits = DEFAULT_BODY_LIMITS
    backoff: JobBackoff = field(default_factory=JobBackoff)
    bytes_read: ByteCount = field(default_factory=ByteCount)

    def run(self, lease: Lease, work: Callable[[Lease], None], crash_event: str) -> None:
        """Run `work` for one job: any failure sets only that job aside.

        `crash_event` is the log event of a failure that is a defect. Raises only
        DATABASE_UNAVAILABLE.
        """
        try:
            work(lease)
        except LeaseLostError:
            self.leases.let_expire(lease)
        except DATABASE_UNAVAILABLE:
            raise
        except MillraceError as failure:
            if failure.disposition is Disposition.CRASH:
                _LOG.exception(crash_event, extra={"job": lease.job_id.hex})
            self.set_aside(lease, failure.code)
        except Exception:  # noqa: BLE001  a defect on one job must not end the others
            _LOG.exception(crash_event, extra={"job": lease.job_id.hex})
            self.set_aside(lease, "internal")

    def set_aside(self, lease: Lease, code: str) -> None:
        """Count and log a failed job; it is validated again once its lease expires.

        The lease expires when its backoff ends; if Postgres is unavailable, after its TTL.
        """
        metrics.JOB_FAILURES.inc()
        _LOG.error("a job was put aside", extra={"job": lease.job_id.hex, "code": code})
        self.leases.back_off_lease(lease, self.backoff.next_s(lease.job_id))

    def validate(
        self,
        lease: Lease,
        files: Sequence[InputFile],
        *,
        endpoint: str,
        find_model: FindModel,
        existing: ExistingFiles | None = None,
    ) -> ValidationResult:
        """Return the result for the last of the files; a missing object rejects it.

        Raises LeaseLostError, ValidationProcessError, and the errors of the object store.
        """
        task = ValidationTask(
            endpoint,
            self.settings.job_items_max,
            self.settings.line_bytes_max,
            self.body_limits,
            existing,
            self.settings.prefix_order,
            self.settings.several_models,
        )

        def read_file(number: int) -> Iterator[bytes]:
            return self._read_blocks(lease, files[number].key)

        try:
            if sum(file.size_bytes for file in files) <= SMALL_BYTES_MAX:
                return task.validate(read_file, find_model)
            check = partial(self._raise_if_stopped, lease)
            return self.processes.validate(task, read_file, find_model, check)
        except ObjectNotFoundError:
            message = "The content of an input file is no longer stored."
            error = LineError(ErrorCode.FILE_NOT_FOUND, message, "input_file_id")
            return ValidationResult(0, None, (error,), 1)

    def store_order(
        self, lease: Lease, file: InputFile, number: int, result: ValidationResult
    ) -> StoredOrder | None:
        """Store the order of the file `number` of a job, if its valid items have one.

        Call it before the verdict. Raises LeaseLostError, InputChangedError, and the errors of the
        object store.
        """
        if result.order is None or result.error_count:
            return None
        key = new_order_key(lease.job_id, number, lease.epoch)
        read = partial(self.read_lines, lease, file.key, LINE_BYTES_CEILING)
        write_order(self.objects, key, result.order, read)
        return StoredOrder(key, result.order.saved_tokens)

    def read_lines(self, lease: Lease, key: str, line_bytes_max: int) -> Iterator[Line]:
        """Yield the lines of a file. Raises LeaseLostError if the lease is lost, or at a stop."""
        return input_lines(self._read_blocks(lease, key), line_bytes_max=line_bytes_max)

    def _read_blocks(self, lease: Lease, key: str) -> Iterator[bytes]:
        with self.objects.read(key) as blocks:
            for block in blocks:
                self._raise_if_stopped(lease)
                self.bytes_read.add(len(block))
                yield block

    def _raise_if_stopped(self, lease: Lease) -> None:
        if self.stop.is_set():
            raise LeaseLostError(job_id=lease.job_id)
        self.leases.raise_if_lost(lease)
