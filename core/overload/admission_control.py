"""Admission of calls to the pools of one process: admit, or promise a place at a later time. Pure.

Callers pass the time and the state of the pool.
"""

from typing import Generic, NamedTuple, TypeVar

from core.overload.retry_promises import Client, RetryPromises
from core.overload.shedding import (
    NONE_PROMISED,
    CallQueue,
    ShedClass,
    SheddingLimits,
    admission_s,
    is_shed,
    promises_max,
    retry_after_s,
)

T = TypeVar("T")


class AdmissionRequest(NamedTuple, Generic[T]):
    """One call that asks for admission."""

    pool: str
    client: Client[T]
    shed_class: ShedClass
    limit_s: float  # longest wait that the call allows; its class may have a lower limit
    share: float = 1.0  # part of the promises of its pool that its tenant may have


class AdmissionControl(Generic[T]):
    """Decides by predicted wait, and remembers the promised places. `T` names a tenant."""

    def __init__(
        self,
        limits: SheddingLimits,
        *,
        retry_after_s_max: int = 59,
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
        return CallQueue(waiting, per_s, promised, part)

    def is_refused(self, call: AdmissionRequest[T], queue: CallQueue, *, now_s: float) -> bool:
        """Whether `admit` would refuse the call now. Changes nothing."""
        call, is_returning = self._with_due_class(call, now_s)
        return is_shed(queue, call.shed_class, self._limit_s(call), is_returning=is_returning)

    def admit(self, call: AdmissionRequest[T], queue: CallQueue, *, now_s: float) -> int | None:
        """Return None for an admitted call, which uses its promise, else its `Retry-After`."""
        if self.is_refused(call, queue, now_s=now_s):
            return self.refuse(call, queue, now_s=now_s)
        self.use_due(call.pool, call.client, now_s=now_s)
        return None

    def use_due(self, pool: str, client: Client[T], *, now_s: float) -> None:
        """Use the promise of an admitted client, if it has one that is due."""
        if self.promises.due_class(pool, client, now_s=now_s) is not None:
            self.promises.use(pool, client)

    def refuse(self, call: AdmissionRequest[T], queue: CallQueue, *, now_s: float) -> int:
        """Return the `Retry-After` of a call that is refused, in seconds.

        The call is promised a place at that time. One that returns before its time is told the rest
        of it, so repeats take no further places. A call that would be promised a place later than
        the largest `Retry-After`, in the queue or by the share of its tenant, is told that one and
        promised nothing.
        """
        s_max, promises = self._retry_after_s_max, self.promises
        promise = promises.find(call.pool, call.client, now_s=now_s)
        if promise is not None and promise.due_s > now_s:
            return retry_after_s(promise.due_s - now_s, s_max=s_max)
        call, is_returning = self._with_due_class(call, now_s)
        promises.use(call.pool, call.client)
        of_tenant = promises.of_tenant(call.pool, call.client.tenant)
        if of_tenant >= promises_max(queue, share=call.share, horizon_s=s_max):
            return s_max
        limit_s = self._limit_s(call)
        wait_s = admission_s(queue, call.shed_class, limit_s, is_returning=is_returning)
        retry_s = retry_after_s(wait_s, s_max=s_max)
        if wait_s <= s_max:
            promises.add(call.pool, call.client, call.shed_class, now_s + retry_s)
        return retry_s

    def _with_due_class(
        self, call: AdmissionRequest[T], now_s: float
    ) -> tuple[AdmissionRequest[T], bool]:
        """Return the call as it is judged, and whether it returns to a promise that is due.

        The calls of a tenant that return first may take it above its share. The others keep the
        class in which they were promised a place. A promise of a worse class than the call has now
        is no place among the promises of that class, so it does not count.
        """
        due_class = self.promises.due_class(call.pool, call.client, now_s=now_s)
        if due_class is None or due_class < call.shed_class:
            return call, False
        return call._replace(shed_class=due_class), True

    def _limit_s(self, call: AdmissionRequest[T]) -> float:
        return min(call.limit_s, self.limits.wait_limit_s(call.shed_class))
