"""How far each job may be expanded now. Pure: rows and capacities in, item counts out.

Outstanding is what was emitted and has no row yet. It is computed from rows each time and never
counted on the side, so a crash, a repair or a second replica cannot make it drift.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from core.limits import CHUNK_ITEMS_MAX
from core.urgency import PRIORITY_DEFAULT, rank

_GRAINS_PER_WINDOW: Final = 4  # a window is refilled in quarters, not item by item


TenantModel: TypeAlias = tuple[UUID, str]
"""A tenant and a model: who shares one window."""


class JobLoad(NamedTuple):
    """A job that is not closed, as its rows show it. A tuple: each look makes one for every job."""

    job_id: UUID
    tenant_id: UUID
    model: str
    pool: str
    total: int
    emitted: int  # items below the cursor
    terminal: int  # of those, items that are on their way no more
    is_held: bool  # some process expands it
    priority: int = PRIORITY_DEFAULT
    left_s: float = 0.0  # to its deadline, by the database's time
    version: int = 0  # of its control state
    is_aside: bool = False  # no process expands it, and none may claim it yet

    @property
    def pair(self) -> TenantModel:
        """Whose window it shares."""
        return self.tenant_id, self.model

    @property
    def rank(self) -> int:
        """Its place among the jobs of its tenant; the lowest goes first, equal ones share."""
        return rank(self.priority, self.left_s)

    @property
    def outstanding(self) -> int:
        """Items on their way. Never negative: a row proves that its item was emitted."""
        return max(0, self.emitted - self.terminal)

    @property
    def remaining(self) -> int:
        """Items that still wait in the input file."""
        return max(0, self.total - self.emitted)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """What the available replicas of a pool do together."""

    items_per_s: float  # 0 while unknown
    concurrency: int  # items that run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Bounds on what may be outstanding."""

    window_s: float
    window_items_max: int
    read_ahead_items: int


def tenant_model_windows(
    loads: Sequence[JobLoad], capacity: Mapping[str, PoolCapacity], limits: WindowLimits
) -> dict[TenantModel, int]:
    """Return the window of every pair that has a job."""
    pools = {load.pair: load.pool for load in loads}
    active = len({load.pair for load in loads if load.outstanding or load.remaining})
    return {pair: window_items(capacity.get(pool), limits, active) for pair, pool in pools.items()}


def allowances(loads: Sequence[JobLoad], windows: Mapping[TenantModel, int]) -> dict[UUID, int]:
    """Return how many items each job may emit now; jobs that may emit none are absent.

    `loads` holds all jobs that are not closed or settled, oldest first: every replica computes
    the same shares, whichever jobs it holds. A job that nobody holds gets none, or it would keep
    its share from those that can use it.
    """
    groups: defaultdict[TenantModel, list[JobLoad]] = defaultdict(list)
    for load in loads:
        groups[load.pair].append(load)
    allowed: dict[UUID, int] = {}
    for pair, group in groups.items():
        allowed |= share_window(group, windows[pair])
    return allowed


def window_items(capacity: PoolCapacity | None, limits: WindowLimits, active: int) -> int:
    """Return the items that one of `active` (tenant, model) pairs may have outstanding.

    Twice the concurrency keeps a pool busy whose rate is not known yet; one chunk lets a first
    answer come back from a pool of which nothing is known.
    """
    wanted = 0
    if capacity is not None:
        throughput = min(limits.window_s * capacity.items_per_s, limits.window_items_max)
        wanted = max(int(throughput), 2 * capacity.concurrency)
    fair = limits.read_ahead_items // (2 * max(1, active))
    return max(CHUNK_ITEMS_MAX, min(wanted, limits.window_items_max, fair))


def share_window(jobs: Sequence[JobLoad], window: int) -> dict[UUID, int]:
    """Share what is free of `window` among the held jobs of one tenant and model, oldest first.

    The lowest rank has all it can use. Among equals whoever has least outstanding is served next, a
    chunk at a time, so jobs level out while the whole never exceeds the window, but for one grain:
    the lowest rank need not wait until the others' items have run. Less than a grain is left for
    later: tiny chunks cost as much as full ones.
    """
    grain = max(1, min(CHUNK_ITEMS_MAX, window // _GRAINS_PER_WINDOW))
    budget = window - sum(job.outstanding for job in jobs)
    rank_max = math.inf
    if budget < grain and (first := _first_grain(jobs, grain)) > budget:
        budget, rank_max = first, _lowest_rank(jobs)
    queue = [
        (job.rank, job.outstanding, place, job.remaining)
        for place, job in enumerate(jobs)
        if job.is_held and job.rank <= rank_max
    ]
    heapq.heapify(queue)
    given: defaultdict[UUID, int] = defaultdict(int)
    while queue and budget > 0:
        its_rank, outstanding, place, remaining = heapq.heappop(queue)
        if min(grain, remaining) > budget or not remaining:
            continue
        count = min(CHUNK_ITEMS_MAX, remaining, budget)
        given[jobs[place].job_id] += count
        budget -= count
        heapq.heappush(queue, (its_rank, outstanding + count, place, remaining - count))
    return dict(given)


def _first_grain(jobs: Sequence[JobLoad], grain: int) -> int:
    """Return what the lowest rank that can emit lacks of a grain on its way.

    Others may fill the window, and more than fill it when the pool became slower meanwhile.
    """
    lowest = _lowest_rank(jobs)
    if sum(job.outstanding for job in jobs if job.rank <= lowest) >= grain:
        return 0
    return min(grain, sum(job.remaining for job in jobs if job.is_held and job.rank == lowest))


def _lowest_rank(jobs: Sequence[JobLoad]) -> int:
    """Return the lowest rank of the jobs that can emit."""
    return min((job.rank for job in jobs if job.is_held and job.remaining), default=0)
