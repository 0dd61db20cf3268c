"""Admission of calls to the pools of one process: admit, or promise a place at a later time. Pure.

Callers pass the time and the state of the pool.
"""

from typing import Generic, NamedTuple, TypeVar

from core.overload.retry_promises import RetryPromises
from core.overload.shedding import (
    NONE_PROMISED,
    CallQueue,
    ShedClass,
    SheddingLimits,
    admission_s,
    is_shed,
    retry_after_s,
)

T = TypeVar("T")


class AdmissionRequest(NamedTuple, Generic[T]):
    """One call that asks for admission."""

    pool: str
    client: T  # a retry has the same
    shed_class: ShedClass
    limit_s: float  # longest wait that the call allows; its class may have a lower limit


class AdmissionControl(Generic[T]):
    """Decides by predicted wait, and remembers the promised places."""

    def __init__(
        self,
        limits: SheddingLimits,
        *,
        retry_after_s_max: int = 60,
        grace_s: float = 5.0,
        promises_max: int = 20_000,
    ) -> None:
        """`grace_s`: how late a client may return. `promises_max`: of all pools."""
        self.limits, self._retry_after_s_max = limits, retry_after_s_max
        self.promises = RetryPromises[T](grace_s=grace_s, count_max=promises_max)

    def queue(
        self, pool: str, waiting: float, per_s: float, *, part: float = 1.0, now_s: float
    ) -> CallQueue:
        """Return the queue of a pool in which `waiting` calls of all processes have no slot.

        `part` is the part of the calls that this process has, above 0: the promises of the others
        are estimated by it.
        """
        promised = self.promises.promised(pool, now_s=now_s)
        if part < 1 and promised != NONE_PROMISED:
            first, second, third, last = promised
            promised = (first / part, second / part, third / part, last / part)
        return CallQueue(waiting, per_s, promised)

    def is_refused(self, call: AdmissionRequest[T], queue: CallQueue, *, now_s: float) -> bool:
        """Whether `admit` would refuse the call now. Changes nothing."""
        is_returning = self.promises.is_due(call.pool, call.client, now_s=now_s)
        return is_shed(queue, call.shed_class, self._limit_s(call), is_returning=is_returning)

    def admit(self, call: AdmissionRequest[T], queue: CallQueue, *, now_s: float) -> int | None:
        """Return None for an admitted call, else its `Retry-After` in seconds.

        A refused call is promised a place at that time, unless the time is longer than the largest
        `Retry-After`.
        """
        limit_s = self._limit_s(call)
        is_returning = self.promises.is_due(call.pool, call.client, now_s=now_s)
        if is_returning:
            self.promises.use(call.pool, call.client)
        if not is_shed(queue, call.shed_class, limit_s, is_returning=is_returning):
            return None
        wait_s = admission_s(queue, call.shed_class, limit_s, is_returning=is_returning)
        retry_s = retry_after_s(wait_s, s_max=self._retry_after_s_max)
        if wait_s <= self._retry_after_s_max:
            self.promises.add(call.pool, call.client, call.shed_class, now_s + retry_s)
        return retry_s

    def _limit_s(self, call: AdmissionRequest[T]) -> float:
        return min(call.limit_s, self.limits.wait_limit_s(call.shed_class))
