"""Failures while a job is emitted: of that job alone, or of the whole process."""

import logging
from typing import Final
from uuid import UUID

from core.errors import Disposition, MillraceError
from jobs import metrics
from storage.objects.errors import ObjectKeyError, ObjectStoreRefusedError

_LOG: Final = logging.getLogger(__name__)


def record_job_failure(job_id: UUID, failure: MillraceError, event: str) -> None:
    """Count and log a failure of one job. Raises a failure that concerns the whole process."""
    if not is_job_failure(failure):
        raise failure
    metrics.JOB_FAILURES.inc()
    facts = {"job": job_id.hex, "code": failure.code, "facts": failure.facts}
    _LOG.error(event, extra=facts)


def is_job_failure(failure: MillraceError) -> bool:
    """Whether to set only that job aside; otherwise the role has to stop.

    An object store may refuse a single object: archived, encrypted under a disabled key, or with
    its own access rights. If that stopped the role, it would stop every intake process in turn. If
    the store refuses every object, each job fails by itself and continues once the store is fixed.
    """
    if isinstance(failure, ObjectStoreRefusedError | ObjectKeyError):
        return True
    return failure.disposition is not Disposition.CRASH
