"""The order in which work is shed when a pool is overloaded, and when it may be tried again. Pure.

    class                      refused while the predicted wait of calls is above
    over-quota bulk            the 1st ratio x the limit of the wait
    bulk                       the 2nd ratio x the limit
    over-quota interactive     the 3rd ratio x the limit
    interactive                the limit

The ratios ascend, so at the same pool and moment nobody of a later class is shed while one of an
earlier class is admitted. Refused calls are promised a place at a time; promises count as calls
that wait, for their own class and those before it.
"""

from enum import IntEnum
from math import ceil, sqrt
from typing import Final, NamedTuple

PROMISED_PART_MAX: Final = 0.5
"""Part of a limit that promises may use: clients that never return leave no pool idle."""

_SIGMAS: Final = 3.0
"""Calls end at random times. A promise counts on so many standard deviations less (Poisson)."""


class ShedClass(IntEnum):
    """Classes of work, in the order in which they are shed."""

    OVER_QUOTA_BULK = 0
    BULK = 1
    OVER_QUOTA_INTERACTIVE = 2
    INTERACTIVE = 3

    @property
    def label(self) -> str:
        """The value of labels of metrics."""
        return self.name.lower()


Promised = tuple[float, float, float, float]
"""Calls that were promised a place and have not returned yet, by class."""

NONE_PROMISED: Final[Promised] = (0, 0, 0, 0)


class CallQueue(NamedTuple):
    """The calls that wait at a pool, at one moment."""

    waiting: float  # calls without a slot
    per_s: float  # calls that the pool completes in a second; 0: not known
    promised: Promised = NONE_PROMISED
    part: float = 1.0  # of the calls, that this process has

    @property
    def wait_s(self) -> float:
        """Predicted wait of one more call; 0 while the rate is not known."""
        return self.waiting / self.per_s if self.per_s > 0 else 0.0


class SheddingLimits(NamedTuple):
    """The limits of the predicted wait of a pool's calls."""

    wait_s_max: float  # of interactive calls within their quota
    ratios: tuple[float, float, float]  # of the classes before, ascending, at most 1

    def wait_limit_s(self, shed_class: ShedClass) -> float:
        """Return the predicted wait above which a class is shed."""
        is_last = shed_class is ShedClass.INTERACTIVE
        return self.wait_s_max if is_last else self.wait_s_max * self.ratios[shed_class]


def is_shed(
    queue: CallQueue, shed_class: ShedClass, limit_s: float, *, is_returning: bool = False
) -> bool:
    """Whether work of a class is refused at a pool.

    `limit_s` is that of the class, or less. `is_returning`: the client was promised a place that is
    due, so the promises of its own class do not count. A pool of unknown rate refuses nobody.
    """
    if queue.per_s <= 0:
        return False
    limit = limit_s * queue.per_s
    if queue.promised == NONE_PROMISED:
        return queue.waiting > limit
    promised = _promised(queue, shed_class, is_returning=is_returning)
    return queue.waiting + min(promised, PROMISED_PART_MAX * limit) > limit


def admission_s(
    queue: CallQueue,
    shed_class: ShedClass,
    limit_s: float,
    *,
    is_returning: bool = False,
) -> float:
    """Return after which time a refused client would be admitted, in seconds.

    It is the time in which the pool completes the calls above the limit, those with a promise
    included. So each refused client gets a later time than the one before, at the rate of the pool.
    """
    promised = _promised(queue, shed_class, is_returning=is_returning)
    above = max(1.0, queue.waiting + promised + 1 - limit_s * queue.per_s)
    return (above + _SIGMAS * sqrt(above)) / queue.per_s


def promises_max(queue: CallQueue, *, share: float, horizon_s: float) -> float:
    """Return how many promises of this process one tenant may have at a pool, at least 1.

    It is `share` of the calls that the pool completes within `horizon_s`, by which all promises are
    due.
    """
    return max(1.0, share * queue.per_s * horizon_s * queue.part)


def retry_after_s(seconds: float, *, s_max: int) -> int:
    """Return a `Retry-After`: whole seconds, rounded up, from 1 to `s_max`."""
    return s_max if seconds >= s_max else max(1, ceil(seconds))


def is_over_share(
    of_tenant: float, of_all: float, *, weight: float, weights: float, capacity: float
) -> bool:
    """Whether one more unit takes a tenant above its weighted fair share of a pool.

    `weights` is the sum over the tenants that use the pool, this one included. Below `capacity`
    units in all, shares are those of the capacity. A tenant may always have one unit.
    """
    share = weight / weights * max(of_all + 1, capacity)
    return of_tenant + 1 > max(1.0, share)


def backlog_limit_s(shed_class: ShedClass, backlog_s_max: float, limits: SheddingLimits) -> float:
    """Return the backlog of a pool, in seconds of its work, above which new batches are refused.

    A tenant above its share is refused earlier, in the same relation as by the wait of calls.
    """
    if shed_class is not ShedClass.OVER_QUOTA_BULK:
        return backlog_s_max
    over_quota, within_quota, _ = limits.ratios
    return backlog_s_max * (over_quota / within_quota)


def _promised(queue: CallQueue, shed_class: ShedClass, *, is_returning: bool) -> float:
    """Return the promises that count before a call: of its class and of those shed after it."""
    return sum(queue.promised[shed_class + is_returning :])
