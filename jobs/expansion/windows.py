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
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from core.urgency import PRIORITY_DEFAULT, rank

_GRAINS_PER_WINDOW: Final = 4  # a window is refilled in quarters, not item by item
_PROBE_SHARE_MAX: Final = 0.05  # of the read-ahead, for all pools without capacity


TenantPool: TypeAlias = tuple[UUID, str]
"""A tenant and a pool; the tenant's jobs on the pool share one window."""

_Key = TypeVar("_Key")


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
    item_bytes: int = 0  # mean size of the lines of its first file
    has_void_items: bool = False  # it was resumed, and `ResumeSweep` has not re-emitted them yet

    @property
    def tenant_pool(self) -> TenantPool:
        """The key of its window."""
        return self.tenant_id, self.pool

    @property
    def is_active(self) -> bool:
        """Whether it has items that are outstanding or not emitted yet."""
        return bool(self.outstanding or self.remaining)

    @property
    def logged_item_bytes(self) -> int:
        """Mean bytes of an item on the log: items above a chunk travel by reference."""
        return 0 if self.item_bytes > CHUNK_BYTES_MAX else self.item_bytes

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
        """Items in the input file that may be emitted.

        Zero while the job has void items: an item that is emitted above the cursor before those
        below it are re-emitted would count as missing, and run twice.
        """
        return 0 if self.has_void_items else max(0, self.total - self.emitted)


@dataclass(frozen=True, slots=True)
class PoolCapacity:
    """The total capacity of the available replicas of a pool."""

    items_per_s: float  # 0 while unknown
    concurrency: int  # items that run at once


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """Limits on outstanding items."""

    window_s: float  # of a pool's throughput
    window_items_max: int  # of a pool
    read_ahead_items: int  # of all pools, for each live batcher
    read_ahead_bytes: int  # the same in bytes of their lines


def pool_budgets(
    loads: Sequence[JobLoad],
    capacity: Mapping[str, PoolCapacity],
    limits: WindowLimits,
    batcher_count: int,
) -> dict[str, int]:
    """Return how many items of each pool with an active job may be outstanding.

    A pool may have what it executes in `window_s`, and at least twice its concurrency, which keeps
    it busy while its rate is unknown. A pool without capacity may have one chunk, which shows
    when it works again. The budgets add up to the read-ahead of the live batchers at most: pools
    that need less than an equal share leave the rest to the others, and all pools without capacity
    together have a twentieth. A batcher buffers twice its read-ahead; items of pools that have lost
    their capacity occupy it, so the total shrinks when they exceed one half. Pools of large items
    share the bytes of the read-ahead in the same way.
    """
    pools = {load.pool for load in loads if load.is_active}
    stranded = [load for load in loads if load.pool not in capacity]
    stranded_items = sum(load.outstanding for load in stranded)
    stranded_bytes = sum(load.outstanding * load.logged_item_bytes for load in stranded)
    total = _free_read_ahead(limits.read_ahead_items * max(1, batcher_count), stranded_items)
    total_bytes = _free_read_ahead(limits.read_ahead_bytes * max(1, batcher_count), stranded_bytes)
    probes = dict.fromkeys(sorted(pools - capacity.keys()), CHUNK_ITEMS_MAX)
    throughput = {
        pool: _throughput_items(capacity[pool], limits) for pool in sorted(pools & capacity.keys())
    }
    probe_items = min(sum(probes.values()), int(total * _PROBE_SHARE_MAX))
    items = fair_shares(throughput, total - probe_items)
    return fair_shares(probes, probe_items) | _within_bytes(items, loads, total_bytes)


def _free_read_ahead(read_ahead: int, stranded: int) -> int:
    """Return what pools with capacity may have of a read-ahead; a quarter of it at least."""
    return max(read_ahead // 4, min(read_ahead, 2 * read_ahead - stranded))


def _within_bytes(
    budgets: Mapping[str, int], loads: Sequence[JobLoad], total_bytes: int
) -> dict[str, int]:
    """Reduce the budgets, in items, until their bytes fit into `total_bytes`; one item at least."""
    items: Counter[str] = Counter()
    byte_count: Counter[str] = Counter()
    for load in loads:
        count = load.outstanding + load.remaining
        items[load.pool] += count
        byte_count[load.pool] += count * load.logged_item_bytes
    means = {pool: max(1, byte_count[pool] // items[pool]) for pool in budgets}
    shares = fair_shares({pool: budgets[pool] * means[pool] for pool in budgets}, total_bytes)
    return {pool: max(1, share // means[pool]) for pool, share in shares.items()}


def _throughput_items(capacity: PoolCapacity, limits: WindowLimits) -> int:
    items = min(limits.window_s * capacity.items_per_s, limits.window_items_max)
    return min(max(int(items), 2 * capacity.concurrency, 1), limits.window_items_max)


def tenant_windows(
    loads: Sequence[JobLoad], budgets: Mapping[str, int], *, items_max: int, turn: int
) -> dict[TenantPool, int]:
    """Return how many items each tenant may have outstanding on each pool.

    The tenants of a pool with outstanding items or a leased job to expand share its budget by
    max-min fairness, `items_max` each at most. If earlier tenants still have
    more than their share outstanding, a tenant with less gets its share of what is free, and half
    of an equal share at once: it does not wait until the items of others have run. So the budget is
    exceeded by half of it at most.

    Of a budget below one item for each tenant, tenants with outstanding items keep theirs, and an
    order that changes with `turn` decides which come next: neither many jobs nor one large job
    bring a tenant more turns.
    """
    outstanding: Counter[TenantPool] = Counter()
    remaining: Counter[TenantPool] = Counter()
    for load in loads:
        outstanding[load.tenant_pool] += load.outstanding
        remaining[load.tenant_pool] += load.remaining if load.is_leased else 0
    tenants: defaultdict[str, list[TenantPool]] = defaultdict(list)
    for key in outstanding:
        if outstanding[key] or remaining[key]:
            tenants[key[1]].append(key)
    windows: dict[TenantPool, int] = {}
    for pool, keys in tenants.items():
        if budgets[pool] < len(keys):
            keys.sort(key=lambda key: (not outstanding[key], _turn_order(key[0], turn)))
        needs = {key: min(items_max, outstanding[key] + remaining[key]) for key in keys}
        shares = fair_shares(needs, budgets[pool])
        missing = {key: max(0, share - outstanding[key]) for key, share in shares.items()}
        free = max(0, budgets[pool] - sum(outstanding[key] for key in keys))
        grants = fair_shares(missing, free)
        at_once = budgets[pool] // (2 * len(keys))
        for key, share in shares.items():
            held = outstanding[key]
            windows[key] = min(share, max(held + grants[key], at_once))
    return windows


def _turn_order(tenant_id: UUID, turn: int) -> bytes:
    return blake2b(b"%b%d" % (tenant_id.bytes, turn), digest_size=8).digest()


def fair_shares(demands: Mapping[_Key, int], total: int) -> dict[_Key, int]:
    """Share `total` items by max-min fairness: nobody gets more than its demand.

    Items that cannot be divided go to the first keys of `demands`. Source: Bertsekas and Gallager,
    Data Networks, 6.5.2.
    """
    shares: dict[_Key, int] = {}
    left = total
    ascending = sorted(demands.items(), key=lambda item: item[1])
    for position, (key, demand) in enumerate(ascending):
        equal = left // (len(ascending) - position)
        if demand > equal:
            break
        shares[key] = demand
        left -= demand
    unsatisfied = [key for key in demands if key not in shares]
    if unsatisfied:
        equal, rest = divmod(left, len(unsatisfied))
        shares |= {key: equal + (n < rest) for n, key in enumerate(unsatisfied)}
    return shares


def allowances(loads: Sequence[JobLoad], windows: Mapping[TenantPool, int]) -> dict[UUID, int]:
    """Return how many items each job may emit now; jobs that may emit none are absent.

    `loads` holds all jobs that are not closed or settled, oldest first: every replica computes
    the same shares, whichever jobs it holds. A job without a holder gets none, so that its share
    goes to jobs that can use it.
    """
    groups: defaultdict[TenantPool, list[JobLoad]] = defaultdict(list)
    for load in loads:
        groups[load.tenant_pool].append(load)
    allowed: dict[UUID, int] = {}
    for key, group in groups.items():
        if window := windows.get(key, 0):
            allowed |= share_window(group, window)
    return allowed


def share_window(jobs: Sequence[JobLoad], window: int) -> dict[UUID, int]:
    """Share the free part of `window` among the held jobs of one tenant and pool, oldest first.

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
    windows: Mapping[TenantPool, int],
    *,
    available: Collection[str],
    leased_ids: Collection[UUID],
    count_max: int,
) -> list[UUID]:
    """Return the jobs to lease, best first: from `leased_ids` and the claimable jobs.

    `loads` holds all open jobs, oldest first. Jobs of pools that are not `available` come last, and
    before them the jobs of tenants whose window is empty: they could emit nothing. A job is then
    ranked by its number among the jobs of its tenant and pool that have items to emit, ordered by
    rank and then by age. Among equal numbers, jobs whose window is less than half full come first:
    a window is a few seconds of work, so slots move between jobs every few seconds.
    """
    outstanding: Counter[TenantPool] = Counter()
    for load in loads:
        outstanding[load.tenant_pool] += load.outstanding
    numbers: Counter[TenantPool] = Counter()
    candidates: list[tuple[bool, bool, int, bool, int, UUID]] = []
    for age, load in sorted(enumerate(loads), key=lambda aged: aged[1].rank):
        if not load.remaining:
            continue
        key = load.tenant_pool
        numbers[key] += 1
        if load.job_id in leased_ids or not (load.is_leased or load.is_suspended):
            window = windows.get(key, 0)
            is_half_full = 2 * outstanding[key] >= window
            order = load.pool not in available, not window, numbers[key], is_half_full, age
            candidates.append((*order, load.job_id))
    return [job_id for *_, job_id in sorted(candidates)[:count_max]]


def rotate(job_ids: Collection[UUID], last: UUID | None) -> list[UUID]:
    """Return the jobs in order, from behind the `last` one of the previous round.

    So no job takes the room or the time of every round.
    """
    ordered = sorted(job_ids)
    first = bisect_right(ordered, last) if last else 0
    return ordered[first:] + ordered[:first]
