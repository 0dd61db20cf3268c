"""Validation of one file under a lease: reads lines, maps failures, and gives up a lost lease.

Both validators use it: the one for the first file of a job and the one for appended files.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator

from core.errors import Disposition, LeaseLostError, MillraceError
from jobs import metrics
from jobs.input.line_checks import ErrorCode, LineError
from jobs.input.line_reader import Line, input_lines
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.leases import Lease
from jobs.settings import IntakeSettings
from jobs.validation.file_validation import (
    ExistingItems,
    FindModel,
    ValidationResult,
    rejected_file,
    validate_file,
)
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectStore
from storage.postgres.engines import DATABASE_UNAVAILABLE

_LOG = logging.getLogger(__name__)


class LeasedValidation:
    """Reads and validates files while their lease is held and the role runs. Thread-safe."""

    def __init__(
        self,
        objects: ObjectStore,
        leases: ActiveLeases,
        settings: IntakeSettings,
        stop: threading.Event,
    ) -> None:
        """Reading ends at `stop`; another process then starts the validation anew."""
        self._objects = objects
        self._leases = leases
        self._settings = settings
        self._stop = stop

    def run(
        self, lease: Lease, work: Callable[[Lease], None], log_crash: Callable[[Lease], None]
    ) -> None:
        """Run `work` for one job: any failure sets only that job aside.

        `log_crash` logs the exception that is being handled. Raises only DATABASE_UNAVAILABLE.
        """
        try:
            work(lease)
        except LeaseLostError:
            self._leases.let_expire(lease)
        except DATABASE_UNAVAILABLE:
            raise
        except MillraceError as failure:
            if failure.disposition is Disposition.CRASH:
                log_crash(lease)
            self.set_aside(lease, failure.code)
        except Exception:  # noqa: BLE001  the process loop of one job
            log_crash(lease)
            self.set_aside(lease, "internal")

    def set_aside(self, lease: Lease, code: str) -> None:
        """Count and log a failed job; it is validated again once its lease expires."""
        metrics.JOB_FAILURES.inc()
        _LOG.error("a job was put aside", extra={"job": lease.job_id.hex, "code": code})
        self._leases.let_expire(lease)

    def validate(
        self,
        lease: Lease,
        key: str,
        *,
        endpoint: str,
        find_model: FindModel,
        existing: ExistingItems | None = None,
    ) -> ValidationResult:
        """Return the result for the file `key`; a missing object rejects it.

        Raises LeaseLostError, and the errors of the object store.
        """
        line_bytes_max = self._settings.line_bytes_max
        try:
            return validate_file(
                lambda: self.read_lines(lease, key, line_bytes_max),
                endpoint=endpoint,
                items_max=self._settings.job_items_max,
                line_bytes_max=line_bytes_max,
                find_model=find_model,
                existing=existing,
            )
        except ObjectNotFoundError:
            message = "The content of an input file is no longer stored."
            return rejected_file(LineError(ErrorCode.FILE_NOT_FOUND, message, "input_file_id"))

    def read_lines(self, lease: Lease, key: str, line_bytes_max: int) -> Iterator[Line]:
        """Yield the lines of a file. Raises LeaseLostError if the lease is lost, or at a stop."""
        with self._objects.read(key) as blocks:
            yield from input_lines(self._while_leased(blocks, lease), line_bytes_max=line_bytes_max)

    def _while_leased(self, blocks: Iterable[bytes], lease: Lease) -> Iterator[bytes]:
        for block in blocks:
            if self._stop.is_set():
                raise LeaseLostError(job_id=lease.job_id)
            self._leases.raise_if_lost(lease)
            yield block
