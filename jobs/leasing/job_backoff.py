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
        self._failures: OrderedDict[UUID, tuple[int, float]] = OrderedDict()  # count, end of wait
        self._lock = threading.Lock()

    def next_s(self, job_id: UUID, now_s: float = 0.0) -> float:
        """Count another failure of a job; return how long it waits, in seconds.

        `now_s` starts the wait for `is_waiting`; who lets a lease expire instead may leave it out.
        """
        with self._lock:
            count = self._failures.pop(job_id, (0, 0.0))[0] + 1
            wait_s = backoff_s(count, self._fraction(), self._rules)
            self._failures[job_id] = count, now_s + wait_s
            if len(self._failures) > _JOBS_MAX:
                self._failures.popitem(last=False)
        return wait_s

    def is_waiting(self, job_id: UUID, now_s: float) -> bool:
        """Whether the wait after the last failure of a job has not ended."""
        with self._lock:
            failure = self._failures.get(job_id)
        return failure is not None and now_s < failure[1]

    def has_failed(self, job_id: UUID) -> bool:
        """Whether the last attempt of a job failed."""
        with self._lock:
            return job_id in self._failures

    def reset(self, job_id: UUID) -> None:
        """Forget the failures of a job, which succeeded."""
        with self._lock:
            self._failures.pop(job_id, None)
