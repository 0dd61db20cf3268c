"""Backoff of jobs that fail for good: doubling, since each attempt occupies a thread."""

from collections import OrderedDict
from typing import Final
from uuid import UUID

BACKOFF_S_MAX: Final = 900.0
_JOBS_MAX: Final = 10_000  # remembered; beyond it the oldest start again


class RetryBackoff:
    """The last wait of each failed job, in this process. One thread at a time per job."""

    def __init__(self) -> None:
        self._last_s: OrderedDict[UUID, float] = OrderedDict()

    def next_s(self, job_id: UUID, first_s: float) -> float:
        """Return the wait after another failure of a job, in seconds, doubling from `first_s`."""
        last_s = self._last_s.pop(job_id, None)
        wait_s = first_s if last_s is None else max(first_s, min(2 * last_s, BACKOFF_S_MAX))
        self._last_s[job_id] = wait_s
        while len(self._last_s) > _JOBS_MAX:
            self._last_s.popitem(last=False)
        return wait_s
