"""How long a job waits after a failure that concerns it alone, such as a store that throttles."""

import random
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final
from uuid import UUID

from jobs.recovery.retry_policy import RetryRules, backoff_s

RULES: Final = RetryRules(backoff_s=10.0, backoff_s_max=60.0)
"""Longest wait after the first failure; it doubles with each one in a row."""

_JOBS_MAX: Final = 10_000  # remembered; beyond it the oldest start again


class JobBackoff:
    """The failures in a row of each job, in this process. Thread-safe.

    Full jitter: jobs that a store refused together do not return together.
    """

    def __init__(
        self, rules: RetryRules = RULES, fraction: Callable[[], float] = random.random
    ) -> None:
        """`fraction` returns a uniform random number from [0, 1)."""
        self._rules, self._fraction = rules, fraction
        self._counts: OrderedDict[UUID, int] = OrderedDict()
        self._lock = threading.Lock()

    def next_s(self, job_id: UUID) -> float:
        """Count another failure of a job; return how long it waits, in seconds."""
        with self._lock:
            count = self._counts.pop(job_id, 0) + 1
            self._counts[job_id] = count
            if len(self._counts) > _JOBS_MAX:
                self._counts.popitem(last=False)
        return backoff_s(count, self._fraction(), self._rules)

    def has_failed(self, job_id: UUID) -> bool:
        """Whether the last attempt of a job failed."""
        with self._lock:
            return job_id in self._counts

    def reset(self, job_id: UUID) -> None:
        """Forget the failures of a job, which succeeded."""
        with self._lock:
            self._counts.pop(job_id, None)
