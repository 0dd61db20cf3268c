"""Selects the jobs that an intake process leases. Pure: loads of all open jobs in, job ids out.

There may be many more jobs than slots. So the first jobs of every tenant come before later jobs of
any tenant, and a job whose window is well filled gives its slot to one whose window is not.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from jobs.expansion.windows import JobLoad, TenantModel


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
