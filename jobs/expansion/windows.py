"""Windows: which jobs a process leases, and how many items each may emit now. Pure.

Outstanding items were emitted and have no row yet. The count is computed from rows each time and
never kept in memory, so no crash, re-emission or second replica can make it drift.
"""

import heapq
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from core.limits import CHUNK_ITEMS_MAX
from core.urgency import PRIORITY_DEFAULT, rank

_GRAINS_PER_WINDOW: Final = 4  # a window is refilled in quarters, not item by item


TenantModel: TypeAlias = tuple[UUID, str]
"""A tenant and a model; the jobs of both share one window."""


class JobLoad(NamedTuple):
    """The load of a job that is not closed. A tuple, since every round creates one for each job."""

    job_id: UUID
    tenant_id: UUID
    model: str
    pool: str
    total: int
    emitted: int  # items below the cursor
    terminal: int  # of those, items that are no longer outstanding
    is_leased: bool  # a process expands it
    priority: int = PRIORITY_DEFAULT
    left_s: float = 0.0  # to its deadline, by the database's clock
    version: int = 0  # of its control state
    is_suspended: bool = False  # no process expands it, and none may claim it yet

    @property
    def tenant_model(self) -> TenantModel:
        """The key of its window."""
        return self.tenant_id, self.model

    @property
    def rank(self) -> int:
        """Its rank among the jobs of its tenant: the lowest goes first, equal ranks share."""
        return rank(self.priority, self.left_s)

    @property
    def outstanding(self) -> int:
        """Emitted items without a row. Never negative: a row proves that its item was emitted."""
        return max(0, self.emitted - self.terminal)

    @property
    def remaining(self) -> int:
        """Items that are still in the input file."""
        return max(0, self.total - self.emitted)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The total capacity of the available replicas of a pool."""

    items_per_s: float  # 0 while unknown
    concurrency: int  # items that run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Limits on outstanding items."""

    window_s: float
    window_items_max: int
    read_ahead_items: int


def tenant_model_windows(
    loads: Sequence[JobLoad], capacity: Mapping[str, PoolCapacity], limits: WindowLimits
) -> dict[TenantModel, int]:
    """Return the window of every tenant and model with a job."""
    pools = {load.tenant_model: load.pool for load in loads}
    active = len({load.tenant_model for load in loads if load.outstanding or load.remaining})
    return {key: window_items(capacity.get(pool), limits, active) for key, pool in pools.items()}


def allowances(loads: Sequence[JobLoad], windows: Mapping[TenantModel, int]) -> dict[UUID, int]:
    """Return how many items each job may emit now; jobs that may emit none are absent.

    `loads` holds all jobs that are not closed or settled, oldest first: every replica computes
    the same shares, whichever jobs it holds. A job without a holder gets none, so that its share
    goes to jobs that can use it.
    """
    groups: defaultdict[TenantModel, list[JobLoad]] = defaultdict(list)
    for load in loads:
        groups[load.tenant_model].append(load)
    allowed: dict[UUID, int] = {}
    for key, group in groups.items():
        allowed |= share_window(group, windows[key])
    return allowed


def window_items(capacity: PoolCapacity | None, limits: WindowLimits, active: int) -> int:
    """Return how many items one of `active` tenant-model pairs may have outstanding.

    Twice the concurrency keeps a pool busy whose rate is not known yet; one chunk yields a first
    result from a pool without any capacity record.
    """
    target = 0
    if capacity is not None:
        throughput = min(limits.window_s * capacity.items_per_s, limits.window_items_max)
        target = max(int(throughput), 2 * capacity.concurrency)
    fair = limits.read_ahead_items // (2 * max(1, active))
    return max(CHUNK_ITEMS_MAX, min(target, limits.window_items_max, fair))


def share_window(jobs: Sequence[JobLoad], window: int) -> dict[UUID, int]:
    """Share the free part of `window` among the held jobs of one tenant and model, oldest first.

    The lowest rank gets all it can use. Among equal ranks the job with the fewest outstanding items
    is served next, a chunk at a time, so jobs level out. The total never exceeds the window by more
    than one grain: the lowest rank need not wait until items of other ranks have run. Less than a
    grain is left for later, because tiny chunks cost as much as full ones.
    """
    grain = max(1, min(CHUNK_ITEMS_MAX, window // _GRAINS_PER_WINDOW))
    budget = window - sum(job.outstanding for job in jobs)
    rank_max = math.inf
    if budget < grain and (first := _first_grain(jobs, grain)) > budget:
        budget, rank_max = first, _lowest_rank(jobs)
    queue = [
        (job.rank, job.outstanding, position, job.remaining)
        for position, job in enumerate(jobs)
        if job.is_leased and job.rank <= rank_max
    ]
    heapq.heapify(queue)
    allowed: defaultdict[UUID, int] = defaultdict(int)
    while queue and budget > 0:
        job_rank, outstanding, position, remaining = heapq.heappop(queue)
        if min(grain, remaining) > budget or not remaining:
            continue
        count = min(CHUNK_ITEMS_MAX, remaining, budget)
        allowed[jobs[position].job_id] += count
        budget -= count
        heapq.heappush(queue, (job_rank, outstanding + count, position, remaining - count))
    return dict(allowed)


def _first_grain(jobs: Sequence[JobLoad], grain: int) -> int:
    """Return how many items the lowest emitting rank lacks to have a grain outstanding.

    Other ranks may fill the window, and exceed it if the pool became slower in the meantime.
    """
    lowest = _lowest_rank(jobs)
    if sum(job.outstanding for job in jobs if job.rank <= lowest) >= grain:
        return 0
    return min(grain, sum(job.remaining for job in jobs if job.is_leased and job.rank == lowest))


def _lowest_rank(jobs: Sequence[JobLoad]) -> int:
    """Return the lowest rank of the jobs that can emit."""
    return min((job.rank for job in jobs if job.is_leased and job.remaining), default=0)


def select_jobs(
    loads: Sequence[JobLoad],
    windows: Mapping[TenantModel, int],
    *,
    leased_ids: Collection[UUID],
    count_max: int,
) -> list[UUID]:
    """Return the jobs to lease, best first: from `leased_ids` and the claimable jobs.

    `loads` holds all open jobs, oldest first. A job is ranked by its number among the jobs of its
    tenant and model that have items to emit, ordered by rank and then by age. Among equal numbers,
    jobs whose window is less than half full come first: a window is ten seconds of work, so slots
    move between jobs every few seconds.
    """
    outstanding: Counter[TenantModel] = Counter()
    for load in loads:
        outstanding[load.tenant_model] += load.outstanding
    numbers: Counter[TenantModel] = Counter()
    candidates: list[tuple[int, bool, int, UUID]] = []
    for age, load in sorted(enumerate(loads), key=lambda aged: aged[1].rank):
        if not load.remaining:
            continue
        key = load.tenant_model
        numbers[key] += 1
        if load.job_id in leased_ids or not (load.is_leased or load.is_suspended):
            is_half_full = 2 * outstanding[key] >= windows[key]
            candidates.append((numbers[key], is_half_full, age, load.job_id))
    return [job_id for *_, job_id in sorted(candidates)[:count_max]]


def rotate(job_ids: Collection[UUID], last: UUID | None) -> list[UUID]:
    """Return the jobs in order, from behind the `last` one of the previous round.

    So no job takes the room or the time of every round.
    """
    ordered = sorted(job_ids)
    first = bisect_right(ordered, last) if last else 0
    return ordered[first:] + ordered[:first]
