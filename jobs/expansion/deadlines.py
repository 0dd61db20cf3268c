"""Deadlines of a tenant's jobs on one pool: which go first, and which cannot end in time. Pure.

While every deadline is comfortable, jobs share as their ranks say. The demand bound decides: the
work due until each deadline must fit into a part of the time until then. Jobs up to the last
deadline that exceeds the bound are urgent, and are served in the order of their deadlines. Earliest
deadline first meets all deadlines whenever any order does (Liu and Layland 1973; Horn 1974).

If no order does, EDF would make many jobs late. So the jobs of a largest set that can end in time
stay, found by Moore's algorithm (Moore 1968), and the others are relegated behind them. They keep
a part of the window, and are planned anew each time: a relegated job whose time suffices again, as
others end or the pool becomes faster, returns. In overload a set that just fits is not enough: its
items are in a window behind others, and the longest of them run for seconds. So a job stays only if
it can end before its deadline when it begins after the lag. What is emitted of it counts, too: it
occupies the pool. A job without items to emit always stays: its rank decides nothing any more.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from core.urgency import relegated_rank, urgent_rank
from jobs.expansion.load_sums import DUE_SPAN_S, Age, JobLoad, TenantPool

USED_SHARE_MAX: Final = 0.8
"""Part of the time until a deadline that the work due until then may need, without being urgent."""

TRICKLE_SHARE: Final = 0.05
"""Part of the window, and so of the rate, that relegated jobs keep."""


class Supply(NamedTuple):
    """What a tenant can expect of a pool."""

    items_per_s: float  # its present share of the pool's rate; 0 while unknown
    now_s: float  # seconds since the epoch
    lag_s: float  # from a change of the order until items end accordingly


@dataclass(frozen=True, slots=True)
class DeadlinePlan:
    """Which jobs of one priority leave their ranks. Jobs are named in the order of deadlines."""

    priority: int = -1
    turn: int = 0  # another one in each window of the pool's work
    urgent: Mapping[UUID, JobLoad] = field(default_factory=dict)
    relegated: Mapping[UUID, JobLoad] = field(default_factory=dict)

    def order_key(self, job: JobLoad) -> tuple[int, float]:
        """Return what orders the job among those of its tenant and pool: rank and deadline.

        Jobs with equal keys share. The deadline is 0 except for urgent jobs.
        """
        if job.priority == self.priority:
            if job.job_id in self.urgent:
                return urgent_rank(job.priority), job.deadline_s
            if job.job_id in self.relegated:
                return relegated_rank(job.priority), 0.0
        return job.rank, 0.0

    def in_order(self, ranked: Iterable[tuple[int, Age]]) -> Iterator[Age]:
        """Yield the jobs to lease, best first; `ranked` are those with items by rank and age.

        Each twentieth is a relegated job, also among urgent ones. Its position and the job change
        with the turn, so relegated jobs have a twentieth of fewer than twenty slots, too.
        """
        if self.priority < 0:
            yield from (age for _, age in ranked)
            return
        planned, last = self.urgent.keys() | self.relegated.keys(), relegated_rank(self.priority)
        urgent = [job.age for job in self.urgent.values() if job.remaining]
        unplanned = ((rank, age) for rank, age in ranked if age[1] not in planned)
        lower: list[Age] = []

        def before_relegated() -> Iterator[Age]:
            yield from urgent
            for job_rank, age in unplanned:
                if job_rank > last:
                    lower.append(age)
                    return
                yield age

        late = rotated([job for job in self.relegated.values() if job.remaining], self.turn)
        yield from _interleaved(before_relegated(), (job.age for job in late), self.turn)
        yield from lower
        yield from (age for _, age in unplanned)


def _interleaved(others: Iterator[Age], late: Iterator[Age], turn: int) -> Iterator[Age]:
    """Yield one of `late` after each nineteen others, in some turns the first one earlier."""
    interval = round(1 / TRICKLE_SHARE)
    number = turn % interval
    for age in others:
        if number == interval - 1:
            yield from islice(late, 1)
            number = 0
        yield age
        number += 1
    yield from late


NO_PLAN: Final = DeadlinePlan()
"""All jobs keep their ranks."""

NO_PLANS: Final[Mapping[TenantPool, DeadlinePlan]] = {}
"""The same of all tenants and pools."""


def pressed_until(due: Mapping[int, int], supply: Supply) -> float | None:
    """Return a time up to which jobs of `plan_deadlines` may be urgent or late; None: none can be.

    `due` are the items of one priority by the span of `DUE_SPAN_S` in which their deadline lies. It
    costs the number of spans, whatever the number of jobs.
    """
    if supply.items_per_s <= 0:
        return None
    rate, start_s = USED_SHARE_MAX * supply.items_per_s, supply.now_s + supply.lag_s
    if sum(due.values()) <= rate * (min(due) * DUE_SPAN_S - start_s):
        return None  # all of it fits until the first deadline, as for most tenants
    total, last = 0, None
    for span in sorted(due):
        total += due[span]
        if total > rate * (span * DUE_SPAN_S - start_s):
            last = span
    return None if last is None else (last + 1) * DUE_SPAN_S


def plan_deadlines(
    jobs: Iterable[JobLoad], supply: Supply, turn: int = 0, *, has_later: bool = False
) -> DeadlinePlan:
    """Return the plan of the jobs of one tenant, pool and priority that have unfinished items.

    Jobs with later deadlines than those that `pressed_until` names may be left out: with
    `has_later` there are some. Without a known rate, without pressure, and if no job can end in
    time, it is `NO_PLAN`. Costs O(n log n).
    """
    if supply.items_per_s <= 0:
        return NO_PLAN
    due = sorted([(job.deadline_s, job.job_id, job.unfinished, job) for job in jobs])
    rate = supply.items_per_s
    relegated: dict[UUID, JobLoad] = {}
    if late_jobs(due, rate, supply.now_s):
        # What is emitted now ends after the lag: in overload most would end just too late.
        rate *= 1 - TRICKLE_SHARE
        late = [due[n] for n in sorted(late_jobs(due, rate, supply.now_s + supply.lag_s))]
        relegated = {job_id: job for _, job_id, _, job in late if job.remaining}
    kept = [one for one in due if one[1] not in relegated] if relegated else due
    count = _urgent_count(kept, rate, supply.now_s + supply.lag_s)
    can_end = has_later or any(job.remaining for _, _, _, job in kept)
    if not can_end or not (relegated or count):
        return NO_PLAN
    urgent = {job_id: job for _, job_id, _, job in kept[:count]}
    return DeadlinePlan(due[0][3].priority, turn, urgent, relegated)


_Due: TypeAlias = tuple[float, UUID, int, JobLoad]
"""A job with its deadline and its unfinished items; sorted, it stands by its deadline."""


def _urgent_count(due: Sequence[_Due], rate: float, start_s: float) -> int:
    """Return how many jobs are due until the last deadline that is not comfortable."""
    total, used = 0, USED_SHARE_MAX * rate
    last = 0
    for count, (deadline_s, _, items, _) in enumerate(due, start=1):
        total += items
        if total > used * (deadline_s - start_s):
            last = count
    return last


def late_jobs(due: Sequence[_Due], rate: float, now_s: float) -> set[int]:
    """Return the numbers of the jobs in `due` to relegate so that the fewest are late.

    Source: Moore, Management Science 15(1), 1968: whenever the work until a deadline does not fit,
    leave out the largest job so far.
    """
    largest: list[tuple[int, int]] = []
    total, late, push = 0, set[int](), heapq.heappush
    for number, (deadline_s, _, items, _) in enumerate(due):
        push(largest, (-items, -number))
        total += items
        if total > rate * (deadline_s - now_s):
            size, index = heapq.heappop(largest)
            total += size
            late.add(-index)
    return late


def trickle_items(window: int, turn: int) -> int:
    """Return how many items relegated jobs may have outstanding at least.

    Of a window below twenty items it is one item, in as many turns as make up the share.
    """
    items = window * TRICKLE_SHARE
    if items >= 1:
        return int(items)
    return int(window > 0 and turn % round(1 / items) == 0)


def rotated(jobs: Sequence[JobLoad], turn: int) -> list[JobLoad]:
    """Return the jobs, beginning with another one in each turn."""
    first = turn % len(jobs) if jobs else 0
    return [*jobs[first:], *jobs[:first]]
