"""How long a job rests that cannot be ended: longer each time, as each try costs others a place."""

from collections import OrderedDict
from typing import Final
from uuid import UUID

BACKOFF_S_MAX: Final = 900.0
_JOBS_MAX: Final = 10_000  # remembered; of more the oldest begin anew


class RetryBackoff:
    """What one process remembers of jobs that failed; each has one thread at a time."""

    def __init__(self) -> None:
        """Nothing has failed yet."""
        self._last_s: OrderedDict[UUID, float] = OrderedDict()

    def next_s(self, job_id: UUID, first_s: float) -> float:
        """Return how long a job rests that has failed once more: doubling from `first_s`."""
        last_s = self._last_s.pop(job_id, None)
        pause_s = first_s if last_s is None else max(first_s, min(2 * last_s, BACKOFF_S_MAX))
        self._last_s[job_id] = pause_s
        while len(self._last_s) > _JOBS_MAX:
            self._last_s.popitem(last=False)
        return pause_s
