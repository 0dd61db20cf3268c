"""Whose a failure is that comes up while a job is emitted: that job's, or this process's."""

from core.errors import Disposition, MillraceError
from storage.objects.errors import ObjectKeyError, ObjectStoreRefusedError


def is_job_failure(failure: MillraceError) -> bool:
    """Whether to put that job aside and go on with others; else the role has to end.

    A store may refuse one object alone: archived, encrypted under a key that was disabled, or with
    rights of its own. Were that to end the role, it would end every intake in turn. Where it
    refuses everything, each job says so, and goes on once that is mended.
    """
    if isinstance(failure, ObjectStoreRefusedError | ObjectKeyError):
        return True
    return failure.disposition is not Disposition.CRASH
