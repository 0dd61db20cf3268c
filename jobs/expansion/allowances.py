"""Shares the windows of tenants among their leased jobs: how many items each may emit now. Pure."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

from core.limits import CHUNK_ITEMS_MAX
from jobs.expansion.deadlines import NO_PLAN, NO_PLANS, DeadlinePlan, rotated, trickle_items
from jobs.expansion.load_sums import JobLoad, TenantPool, TenantPoolLoad

_GRAINS_PER_WINDOW: Final = 4  # a window is refilled in quarters, not item by item


def allowances(
    leased: Sequence[JobLoad],
    loads: Mapping[TenantPool, TenantPoolLoad],
    windows: Mapping[TenantPool, int],
    plans: Mapping[TenantPool, DeadlinePlan] = NO_PLANS,
) -> dict[UUID, int]:
    """Return how many items each job may emit now; jobs that may emit none are absent.

    `leased` holds all leased jobs, of every process and oldest first: every process computes the
    same shares, whichever jobs it holds. A job without a holder gets none, so that its share goes
    to jobs that can use it.
    """
    groups: defaultdict[TenantPool, list[JobLoad]] = defaultdict(list)
    for load in leased:
        if load.remaining:
            groups[load.tenant_pool].append(load)
    allowed: dict[UUID, int] = {}
    for key, group in groups.items():
        if window := windows.get(key, 0):
            plan = plans.get(key, NO_PLAN)
            allowed |= share_window(group, loads[key], window, plan)
    return allowed


def share_window(
    jobs: Sequence[JobLoad],
    load: TenantPoolLoad,
    window: int,
    plan: DeadlinePlan = NO_PLAN,
) -> dict[UUID, int]:
    """Share the free part of `window` among the leased `jobs` of one tenant and pool, oldest first.

    `load` sums up all jobs of the tenant on the pool. The lowest rank gets all it can use. Among
    equal ranks the job with the fewest outstanding items is served next, a chunk at a time, so jobs
    level out. The total never exceeds the window by more than one grain: the lowest rank need not
    wait until items of other ranks have run. Less than a grain is left for later, because tiny
    chunks cost as much as full ones.

    Urgent jobs of `plan` come first, in the order of their deadlines. Its relegated jobs come last,
    and have a part of the window before all others.
    """
    grain = max(1, min(CHUNK_ITEMS_MAX, window // _GRAINS_PER_WINDOW))
    budget = window - load.outstanding
    allowed = _trickle(jobs, window, budget, plan) if plan.relegated else Counter[UUID]()
    budget -= allowed.total()
    order_keys = [plan.order_key(job) for job in jobs]
    rank_max = math.inf
    if budget < grain:
        remaining = [n for n, job in enumerate(jobs) if job.remaining > allowed[job.job_id]]
        lowest = min((order_keys[n][0] for n in remaining), default=0)
        lacking = _lacking_of_a_grain(jobs, order_keys, load, grain, lowest)
        if lacking > budget:
            budget, rank_max = lacking, lowest
    queue = [
        (*key, job.outstanding + allowed[job.job_id], position)
        for position, (job, key) in enumerate(zip(jobs, order_keys, strict=True))
        if key[0] <= rank_max
    ]
    heapq.heapify(queue)
    while queue and budget > 0:
        job_rank, due_s, outstanding, position = heapq.heappop(queue)
        job_id = jobs[position].job_id
        remaining_count = jobs[position].remaining - allowed[job_id]
        if min(grain, remaining_count) > budget or not remaining_count:
            continue
        count = min(CHUNK_ITEMS_MAX, remaining_count, budget)
        allowed[job_id] += count
        budget -= count
        heapq.heappush(queue, (job_rank, due_s, outstanding + count, position))
    return {job_id: count for job_id, count in allowed.items() if count}


def _trickle(
    jobs: Sequence[JobLoad], window: int, budget: int, plan: DeadlinePlan
) -> Counter[UUID]:
    """Return what relegated jobs may emit before all others: those with the fewest outstanding.

    What jobs near their end have outstanding was emitted before; it keeps nothing from the others.
    """
    mine = rotated([job for job in jobs if job.job_id in plan.relegated], plan.turn)
    items = trickle_items(window, plan.turn)
    missing = min(budget, items - sum(job.outstanding for job in mine if not job.is_in_tail))
    if missing < max(1, items // _GRAINS_PER_WINDOW):
        return Counter()
    grain = max(1, items // _GRAINS_PER_WINDOW)
    queue = [(job.outstanding, n, job.remaining) for n, job in enumerate(mine) if job.remaining]
    heapq.heapify(queue)
    allowed: Counter[UUID] = Counter()
    while queue and missing > 0:
        outstanding, number, remaining = heapq.heappop(queue)
        count = min(CHUNK_ITEMS_MAX, grain, remaining, missing)
        allowed[mine[number].job_id] += count
        missing -= count
        if remaining > count:
            heapq.heappush(queue, (outstanding + count, number, remaining - count))
    return allowed


def _lacking_of_a_grain(
    jobs: Sequence[JobLoad],
    order_keys: Sequence[tuple[int, float]],
    load: TenantPoolLoad,
    grain: int,
    lowest: int,
) -> int:
    """Return how many items the lowest emitting rank lacks to have a grain outstanding.

    Other ranks may fill the window, and exceed it if the pool became slower in the meantime.
    """
    outstanding = sum(n for rank, n in load.outstanding_by_rank.items() if rank <= lowest)
    for job, (job_rank, _) in zip(jobs, order_keys, strict=True):  # a plan moves jobs between ranks
        outstanding += job.outstanding * ((job_rank <= lowest) - (job.rank <= lowest))
    if outstanding >= grain:
        return 0
    first = [job for job, key in zip(jobs, order_keys, strict=True) if key[0] == lowest]
    return min(grain, sum(job.remaining for job in first))
