"""Validations in a small thread pool: large files leave a thread for small ones."""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa

from core.clock import Clock
from core.errors import Disposition, LeaseLostError, MillraceError
from core.states import JobState
from jobs import metrics
from jobs.input.input_files import InputFile
from jobs.input.line_checks import ErrorCode, LineError
from jobs.input.line_reader import Line, input_lines
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.leasing.leases import Lease
from jobs.settings import IntakeSettings
from jobs.store.copies import store_copies
from jobs.tables.jobs import jobs
from jobs.validation.file_validation import ValidationResult, rejected_file, validate_file
from jobs.validation.verdicts import VALIDATION_DUE, record_verdict
from registry.models import ModelVersion, find_model
from storage.objects.errors import ObjectMissingError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_AWAY

_LOG = logging.getLogger(__name__)
SMALL_BYTES_MAX: Final = 8 * 1024 * 1024
"""What counts as a small validation: about 15 ms of work."""

_SMALL = jobs.c.input_bytes <= SMALL_BYTES_MAX


class Validator:
    """Claims jobs that await validation, as many as can start at once."""

    def __init__(
        self,
        engine: sa.Engine,
        objects: ObjectStore,
        leases: ActiveLeases,
        settings: IntakeSettings,
        clock: Clock,
        stop: threading.Event,
    ) -> None:
        """Work in threads until `stop`; what is unfinished then begins anew elsewhere."""
        self._engine = engine
        self._objects = objects
        self._leases = leases
        self._settings = settings
        self._stop = stop
        self._queues = {
            is_small: LeaseQueue(engine, leases, sa.and_(VALIDATION_DUE, size), clock)
            for is_small, size in ((True, _SMALL), (False, ~_SMALL))
        }
        self._threads = ThreadPoolExecutor(settings.validation_threads, "validation")
        self._claiming = threading.Lock()
        self._lock = threading.Lock()
        self._running = {True: 0, False: 0}  # by whether the file is small

    def claim(self) -> int:
        """Start what may start now, and return how many validations that are.

        Called by the loop, and by each thread that becomes free.
        """
        count = 0
        with self._claiming:
            for is_small, slots in self._slots():
                for lease in self._queues[is_small].claim(slots):
                    with self._lock:
                        self._running[is_small] += 1
                    self._threads.submit(self._run, lease, is_small)
                    count += 1
        return count

    def close(self) -> None:
        """Wait for the threads, which notice `stop` at the next block."""
        self._threads.shutdown(cancel_futures=True)

    def _slots(self) -> Iterator[tuple[bool, int]]:
        """None once the role stops.

        Large files first, else a stream of small ones would keep them waiting for ever.
        """
        for is_small in () if self._stop.is_set() else (False, True):
            with self._lock:
                free = free_slots(
                    self._settings.validation_threads,
                    small=self._running[True],
                    large=self._running[False],
                    for_small=is_small,
                )
            yield is_small, free

    def _run(self, lease: Lease, is_small: bool) -> None:
        """The process loop of one job: whatever fails, the others go on."""
        try:
            with metrics.VALIDATION_SECONDS.time():
                self._validate(lease)
        except LeaseLostError:
            self._leases.let_expire(lease)
        except DATABASE_AWAY as failure:
            self._put_aside(lease, type(failure).__name__)
        except MillraceError as failure:
            if failure.disposition is Disposition.CRASH:
                _LOG.exception("validation failed", extra={"job": lease.job_id.hex})
            self._put_aside(lease, failure.code)
        except Exception:  # noqa: BLE001  the process loop of one job
            _LOG.exception("validation failed", extra={"job": lease.job_id.hex})
            self._put_aside(lease, "internal")
        finally:
            with self._lock:
                self._running[is_small] -= 1
        with contextlib.suppress(*DATABASE_AWAY):
            self.claim()

    def _validate(self, lease: Lease) -> None:
        with self._engine.begin() as connection:
            job = connection.execute(
                sa.select(jobs.c.endpoint, jobs.c.input_key, jobs.c.deduplicate).where(
                    jobs.c.id == lease.job_id
                )
            ).one()
        verdict = self._verdict(lease, job.endpoint, job.input_key)
        if job.deduplicate and not verdict.error_count:
            files = [InputFile(job.input_key, 0)]
            store_copies(self._engine, lease, files, lambda key: self._lines(key, lease))
        with self._engine.begin() as connection:
            state = record_verdict(connection, lease, verdict)
            self._leases.release_in(connection, lease)  # whoever is woken finds the job free
        if state is JobState.FAILED:
            metrics.JOBS_REFUSED.inc()

    def _verdict(self, lease: Lease, endpoint: str, input_key: str) -> ValidationResult:
        try:
            return validate_file(
                lambda: self._lines(input_key, lease),
                endpoint=endpoint,
                items_max=self._settings.job_items_max,
                line_bytes_max=self._settings.line_bytes_max,
                find_model=self._find_model,
            )
        except ObjectMissingError:
            message = "The content of the input file is gone."
            return rejected_file(LineError(ErrorCode.FILE_NOT_FOUND, message, "input_file_id"))

    def _lines(self, key: str, lease: Lease) -> Iterator[Line]:
        with self._objects.read(key) as blocks:
            yield from input_lines(
                self._while_held(blocks, lease), line_bytes_max=self._settings.line_bytes_max
            )

    def _while_held(self, blocks: Iterable[bytes], lease: Lease) -> Iterator[bytes]:
        """Raises LeaseLostError as soon as another has the job, or the role stops."""
        for block in blocks:
            if self._stop.is_set():
                raise LeaseLostError(job_id=lease.job_id)
            self._leases.raise_if_lost(lease)
            yield block

    def _find_model(self, name: str) -> ModelVersion | None:
        with self._engine.begin() as connection:
            return find_model(connection, name)

    def _put_aside(self, lease: Lease, code: str) -> None:
        metrics.JOB_FAILURES.inc()
        _LOG.error("a job was put aside", extra={"job": lease.job_id.hex, "code": code})
        self._leases.let_expire(lease)


def free_slots(threads: int, *, small: int, large: int, for_small: bool) -> int:
    """Return how many validations of a size may start; one thread is kept for small files."""
    free = threads - small - large
    if for_small:
        return max(0, free)
    return max(0, min(free, max(1, threads - 1) - large))
