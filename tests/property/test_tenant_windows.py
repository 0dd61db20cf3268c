"""Goal: windows and leases follow reserved shares and priority classes, and nothing is wasted."""

from uuid import UUID

import pytest

from core.tenant_claims import TenantClaim
from jobs.expansion.load_sums import LoadSums
from jobs.expansion.windows import select_jobs
from tests.property.test_windows import tenant_job, windows_of


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
