"""Goal: windows and leases follow reserved shares and classes, and newcomers have a limit."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tenant_claims import TenantClaim
from jobs.expansion.load_sums import JobLoad, LoadSums
from jobs.expansion.windows import select_jobs
from tests.property.test_windows import allowances, tenant_job, weight_of, windows_of


def test_a_reserved_share_and_a_class_count_in_windows() -> None:
    jobs = [tenant_job(n, 60_000) for n in range(1, 7)]
    reserved, low = jobs[0], jobs[5]

    def claim(tenant_id: UUID, pool: str) -> TenantClaim:
        assert pool == "p"
        if tenant_id == reserved.tenant_id:
            return TenantClaim(1, 0.5)
        return TenantClaim(1, 0.0, 2 if tenant_id == low.tenant_id else 1)

    windows = windows_of(jobs, {"p": 10_000}, claim=claim)
    assert windows[reserved.tenant_pool] == pytest.approx(5000, abs=10)
    assert windows[low.tenant_pool] == pytest.approx(500, abs=10)
    assert windows[jobs[2].tenant_pool] == pytest.approx(4500 / 4, abs=10)
    windows = windows_of([reserved._replace(total=100), low], {"p": 10_000}, claim=claim)
    assert windows[reserved.tenant_pool] + windows[low.tenant_pool] == 10_000  # work-conserving


def test_jobs_of_a_higher_class_are_leased_first() -> None:
    jobs = [tenant_job(n, 100) for n in range(1, 9)]
    sums = LoadSums.of(jobs).by_tenant_pool
    selected = select_jobs(
        sums,
        dict.fromkeys(sums, 10),
        available={"p"},
        unclaimable=(),
        count_max=2,
        claim=lambda tenant, _: TenantClaim(1, 0.0, 0 if tenant.int == 7 else 1),
    )
    assert selected[0] == jobs[6].job_id


@given(
    weights=st.lists(st.integers(1, 9), min_size=1, max_size=100),
    budget=st.integers(1, 20_000),
    ended=st.integers(0, 3000),
)
def test_tenants_that_come_one_after_another_exceed_the_budget_by_all_of_it_at_most(
    weights: list[int], budget: int, ended: int
) -> None:
    claim = weight_of(dict(enumerate(weights, start=1)))
    jobs: list[JobLoad] = []
    for number in range(1, len(weights) + 1):
        jobs.append(tenant_job(number, 60_000))
        allowed = allowances(jobs, windows_of(jobs, {"p": budget}, claim=claim))
        jobs = [job._replace(emitted=job.emitted + allowed.get(job.job_id, 0)) for job in jobs]
        assert sum(job.outstanding for job in jobs) <= 2 * budget + number
        oldest = jobs[0]
        jobs[0] = oldest._replace(terminal=min(oldest.emitted, oldest.terminal + ended))


def test_what_is_left_for_newcomers_is_shared_by_weight_and_one_item_is_always_left() -> None:
    fills = [tenant_job(number, 60_000, emitted=190) for number in (1, 2)]
    light, heavy = tenant_job(3, 60_000), tenant_job(4, 60_000)
    claim = weight_of({4: 3})
    windows = windows_of([*fills, light, heavy], {"p": 200}, claim=claim)
    assert (windows[light.tenant_pool], windows[heavy.tenant_pool]) == (5, 15)
    full = [job._replace(emitted=200) for job in fills]
    windows = windows_of([*full, light, heavy], {"p": 200}, claim=claim)
    assert (windows[light.tenant_pool], windows[heavy.tenant_pool]) == (1, 1)
