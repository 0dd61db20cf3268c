"""Which jobs an intake process holds. Pure: the loads of all open jobs in, job ids out.

There may be many more jobs than slots, so every tenant's first jobs come before any other's later
ones, and whoever has plenty on its way leaves its slot to one that has not.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from jobs.expansion.windows import JobLoad, TenantModel


def select_jobs(
    loads: Sequence[JobLoad],
    windows: Mapping[TenantModel, int],
    *,
    mine: Collection[UUID],
    count_max: int,
) -> list[UUID]:
    """Return the jobs to hold, the most wanted first: of `mine` and of those one may claim.

    `loads` is of all open jobs, oldest first. A job's place is its number among those of its
    tenant and model that still have items to emit, by rank and then by age. Of equal places those
    come first whose window is not half full: a window is ten seconds of work, so slots change hands
    every few seconds.
    """
    outstanding: Counter[TenantModel] = Counter()
    for load in loads:
        outstanding[load.pair] += load.outstanding
    places: Counter[TenantModel] = Counter()
    ranked: list[tuple[int, bool, int, UUID]] = []
    for age, load in sorted(enumerate(loads), key=lambda found: found[1].rank):
        if not load.remaining:
            continue
        pair = load.pair
        places[pair] += 1
        if load.job_id in mine or not (load.is_held or load.is_aside):
            is_busy = 2 * outstanding[pair] >= windows[pair]
            ranked.append((places[pair], is_busy, age, load.job_id))
    return [job_id for *_, job_id in sorted(ranked)[:count_max]]
