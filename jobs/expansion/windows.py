"""Windows: how many items each tenant may have outstanding, and which jobs to lease. Pure.

Outstanding items were emitted and have no row yet. `LoadCache` keeps their sums equal to the rows
of Postgres, so no crash, re-emission or second replica can make them drift.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeAlias, TypeVar
from uuid import UUID

from core.fair_shares import fair_shares
from core.limits import CHUNK_ITEMS_MAX
from core.tenant_claims import PLAIN_CLAIM, TenantClaim, whole_weights
from jobs.expansion.deadlines import NO_PLAN, NO_PLANS, DeadlinePlan
from jobs.expansion.load_sums import Age, JobLoad, PoolLoad, TenantPool, TenantPoolLoad

_PROBE_SHARE_MAX: Final = 0.05  # of the read-ahead, for all pools without capacity

_Key = TypeVar("_Key")
_Place: TypeAlias = tuple[bool, int]  # whether the window is half full, and the class


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
    pools: Mapping[str, PoolLoad],
    capacity: Mapping[str, PoolCapacity],
    limits: WindowLimits,
    batcher_count: int,
    unserved: Iterable[PoolLoad] = (),
) -> dict[str, int]:
    """Return how many items of each pool with an active job may be outstanding.

    `unserved` are sums of the jobs whose version no replica has; they are not in `pools`.

    A pool may have what it executes in `window_s`, and at least twice its concurrency, which keeps
    it busy while its rate is unknown. A pool without capacity may have one chunk, which shows
    when it works again. The budgets add up to the read-ahead of the live batchers at most: pools
    that need less than an equal share leave the rest to the others, and all pools without capacity
    together have a twentieth. A batcher buffers twice its read-ahead; items that nothing can run
    now occupy it, so the total shrinks when they exceed one half: those of pools that have lost
    their capacity, and those of `unserved` jobs. Pools of large items share the bytes of the
    read-ahead in the same way.
    """
    stranded = [load for pool, load in pools.items() if pool not in capacity]
    stranded += unserved
    stranded_items = sum(load.outstanding for load in stranded)
    stranded_bytes = sum(load.outstanding_bytes for load in stranded)
    total = _free_read_ahead(limits.read_ahead_items * max(1, batcher_count), stranded_items)
    total_bytes = _free_read_ahead(limits.read_ahead_bytes * max(1, batcher_count), stranded_bytes)
    probes = dict.fromkeys(sorted(pools.keys() - capacity.keys()), CHUNK_ITEMS_MAX)
    throughput = {
        pool: _throughput_items(capacity[pool], limits)
        for pool in sorted(pools.keys() & capacity.keys())
    }
    probe_items = min(sum(probes.values()), int(total * _PROBE_SHARE_MAX))
    items = fair_shares(throughput, total - probe_items)
    return fair_shares(probes, probe_items) | _within_bytes(items, pools, total_bytes)


def _free_read_ahead(read_ahead: int, stranded: int) -> int:
    """Return what pools with capacity may have of a read-ahead; a quarter of it at least."""
    return max(read_ahead // 4, min(read_ahead, 2 * read_ahead - stranded))


def _within_bytes(
    budgets: Mapping[str, int], pools: Mapping[str, PoolLoad], total_bytes: int
) -> dict[str, int]:
    """Reduce the budgets, in items, until their bytes fit into `total_bytes`; one item at least."""
    means = {
        pool: max(1, pools[pool].unfinished_bytes // pools[pool].unfinished) for pool in budgets
    }
    shares = fair_shares({pool: budgets[pool] * means[pool] for pool in budgets}, total_bytes)
    return {pool: max(1, share // means[pool]) for pool, share in shares.items()}


def _throughput_items(capacity: PoolCapacity, limits: WindowLimits) -> int:
    """Return what a pool executes in the window, four times its concurrency at least.

    Replicas hold up to twice their concurrency; of the rest batchers choose the next tenant.
    """
    items = min(limits.window_s * capacity.items_per_s, limits.window_items_max)
    return min(max(int(items), 4 * capacity.concurrency, 1), limits.window_items_max)


def tenant_windows(
    loads: Mapping[TenantPool, TenantPoolLoad],
    remaining: Mapping[TenantPool, int],
    budgets: Mapping[str, int],
    *,
    items_max: int,
    turn: int,
    claim: Callable[[UUID, str], TenantClaim] = lambda _tenant_id, _pool: PLAIN_CLAIM,
) -> dict[TenantPool, int]:
    """Return how many items each tenant may have outstanding on each pool.

    `remaining` counts the items that can be emitted: those of leased jobs. The tenants of a pool
    with outstanding or remaining items share its budget by their effective weights (see
    `core.tenant_claims`) and max-min fairness: one item each at least, and `items_max` at most. If
    earlier tenants still have more than their share outstanding, a tenant with less gets what its
    weight brings it, or one item, at once: with less its queue at a batcher would run empty, and
    its turns would go to others, until their items have run. A batcher buffers twice its
    read-ahead: items at once exceed the budget by all of it, and one item for each tenant, at most,
    however many tenants come one after another. What is left of that is shared by weight, too.

    Of a budget below one item for each tenant, tenants with outstanding items keep theirs, and an
    order that changes with `turn` decides which come next: neither many jobs nor one large job
    bring a tenant more turns.
    """
    tenants: defaultdict[str, list[TenantPool]] = defaultdict(list)
    for key, load in loads.items():
        if load.outstanding or remaining.get(key):
            tenants[key[1]].append(key)
    windows: dict[TenantPool, int] = {}
    for pool, keys in tenants.items():
        outstanding = {key: loads[key].outstanding for key in keys}
        if budgets[pool] < len(keys):
            keys.sort(key=lambda key: (not outstanding[key], _turn_order(key[0], turn)))
        needs = {key: min(items_max, outstanding[key] + remaining.get(key, 0)) for key in keys}
        weights = whole_weights({key: claim(*key) for key in keys})
        shares = _weighted_shares(needs, budgets[pool], weights)
        missing = {key: max(0, share - outstanding[key]) for key, share in shares.items()}
        free = max(0, budgets[pool] - sum(outstanding.values()))
        grants = fair_shares(missing, free, weights)
        granted = {key: min(shares[key], outstanding[key] + grants[key]) for key in keys}
        left = max(0, 2 * budgets[pool] - sum(outstanding.values()) - sum(grants.values()))
        at_once = _items_at_once(granted, shares, budgets[pool], weights, left)
        windows |= {key: items + at_once.get(key, 0) for key, items in granted.items()}
    return windows


def _items_at_once(
    granted: Mapping[_Key, int],
    shares: Mapping[_Key, int],
    budget: int,
    weights: Mapping[_Key, int],
    left: int,
) -> dict[_Key, int]:
    """Share the `left` items among those with less than their weight brings them of a budget.

    One without items gets one anyway, of a budget that has two items for each.
    """
    total_weight, one = sum(weights.values()), min(1, budget // (2 * len(shares)))
    lacking = {
        key: items
        for key, share in shares.items()
        if (items := min(share, max(one, budget * weights[key] // total_weight)) - granted[key]) > 0
    }
    if not lacking:
        return {}
    shared = fair_shares(lacking, left, weights)
    return {key: items or (0 if granted[key] else one) for key, items in shared.items()}


def _turn_order(tenant_id: UUID, turn: int) -> bytes:
    return blake2b(b"%b%d" % (tenant_id.bytes, turn), digest_size=8).digest()


def _weighted_shares(
    needs: Mapping[_Key, int], total: int, weights: Mapping[_Key, int]
) -> dict[_Key, int]:
    """Share `total` items by weight, of which each key with a need gets one if all can.

    Otherwise the first keys get one: a heavy key must not get all turns.
    """
    if total < len(needs):
        return fair_shares(needs, total)
    firsts = {key: min(1, need) for key, need in needs.items()}
    rest = {key: need - firsts[key] for key, need in needs.items()}
    shares = fair_shares(rest, total - sum(firsts.values()), weights)
    return {key: firsts[key] + share for key, share in shares.items()}


def remaining_of(leased: Iterable[JobLoad]) -> Counter[TenantPool]:
    """Return how many items the leased jobs of each tenant and pool can still emit."""
    remaining: Counter[TenantPool] = Counter()
    for load in leased:
        remaining[load.tenant_pool] += load.remaining
    return remaining


def select_jobs(  # noqa: PLR0913  each one is an option
    loads: Mapping[TenantPool, TenantPoolLoad],
    windows: Mapping[TenantPool, int],
    *,
    available: Collection[str],
    unclaimable: Collection[UUID],
    count_max: int,
    plans: Mapping[TenantPool, DeadlinePlan] = NO_PLANS,
    claim: Callable[[UUID, str], TenantClaim] = lambda _tenant_id, _pool: PLAIN_CLAIM,
) -> list[UUID]:
    """Return the jobs to lease, best first: those with items to emit that are not `unclaimable`.

    Another process expands an unclaimable job, or its lease is suspended. Jobs of pools that are
    not `available` come last, and before them the jobs of tenants whose window is empty: they could
    emit nothing. A job is then ranked by its number among the jobs of its tenant and pool that have
    items to emit, ordered by rank and then by age; in the plan of its tenant and pool urgent jobs
    come first, and each twentieth is a relegated one. Among equal numbers, jobs whose window is
    less than half full come first, and of those the higher priority classes: a window is a few
    seconds of work, so slots move between jobs every few seconds.
    """
    tiers: defaultdict[tuple[bool, bool], list[tuple[_Place, Iterator[Age]]]] = defaultdict(list)
    for key, load in loads.items():
        if load.remaining:
            window = windows.get(key, 0)
            place = 2 * load.outstanding >= window, claim(*key).tenant_class
            in_order = plans.get(key, NO_PLAN).in_order(load.in_order())
            tiers[key[1] not in available, not window].append((place, in_order))
    selected: list[UUID] = []
    for tier in sorted(tiers):
        queues = tiers[tier]
        while queues and len(selected) < count_max:
            heads = [(place, age, queue) for place, queue in queues if (age := next(queue, None))]
            ranked = sorted((place, age) for place, age, _ in heads if age[1] not in unclaimable)
            selected += [job_id for _, (_, job_id) in ranked]
            queues = [(place, queue) for place, _, queue in heads]
    return selected[:count_max]


def rotate(job_ids: Collection[UUID], last: UUID | None) -> list[UUID]:
    """Return the jobs in order, from behind the `last` one of the previous round.

    So no job takes the room or the time of every round.
    """
    ordered = sorted(job_ids)
    first = bisect_right(ordered, last) if last else 0
    return ordered[first:] + ordered[:first]
