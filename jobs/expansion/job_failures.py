"""Decides whether a failure while a job is emitted concerns that job or the whole process."""

from core.errors import Disposition, MillraceError
from storage.objects.errors import ObjectKeyError, ObjectStoreRefusedError


def is_job_failure(failure: MillraceError) -> bool:
    """Whether to set only that job aside; otherwise the role has to stop.

    An object store may refuse a single object: archived, encrypted under a disabled key, or with
    its own access rights. If that stopped the role, it would stop every intake process in turn. If
    the store refuses every object, each job fails by itself and continues once the store is fixed.
    """
    if isinstance(failure, ObjectStoreRefusedError | ObjectKeyError):
        return True
    return failure.disposition is not Disposition.CRASH
