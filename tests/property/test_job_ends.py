"""Goal: estimates of job ends follow the work, the weights and the rate of a pool."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.estimates.job_end import PoolEstimate
from core.estimates.new_jobs import AddedWork, NewJobs
from core.estimates.pool_shares import PoolShares, TenantWork
from core.estimates.rate_history import PoolRate
from core.estimates.tenant_queue import JobWork, work_ahead

WORK = st.floats(1, 1e6)
TENANTS = st.dictionaries(
    st.integers(0, 20),
    st.builds(TenantWork, remaining=WORK, weight=st.integers(1, 1000)),
    min_size=1,
    max_size=8,
)
JOBS = st.lists(
    st.builds(
        JobWork,
        job_id=st.integers(0, 2**64).map(lambda number: UUID(int=number)),
        rank=st.integers(0, 3),
        age=st.floats(0, 1e6),
        remaining=WORK,
        has_started=st.booleans(),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda job: job.job_id,
)
NEW_JOBS = st.builds(
    NewJobs, per_s=st.floats(0, 1), log_mean=st.floats(0, 10), log_deviation=st.floats(0, 2)
)


@given(TENANTS, st.floats(0.1, 1e4))
def test_the_last_tenant_ends_when_the_pool_has_done_all_work(
    tenants: dict[int, TenantWork], rate: float
) -> None:
    shares = PoolShares(tenants, rate)
    last = max(shares.seconds_until(key, one.remaining) for key, one in tenants.items())
    assert last == pytest.approx(sum(one.remaining for one in tenants.values()) / rate)


@given(JOBS)
def test_the_last_job_ends_with_all_work_of_its_tenant(jobs: list[JobWork]) -> None:
    ahead = work_ahead(jobs)
    assert set(ahead) == {job.job_id for job in jobs}
    assert max(one.to_end for one in ahead.values()) == pytest.approx(
        sum(job.remaining for job in jobs)
    )
    for job in jobs:
        one = ahead[job.job_id]
        assert 0 <= one.to_turn <= one.to_end + 1e-6
        assert one.to_end >= job.remaining * (1 - 1e-9)


@given(JOBS)
def test_a_lower_rank_ends_before_a_higher_one_starts(jobs: list[JobWork]) -> None:
    ahead = work_ahead(jobs)
    for job in jobs:
        before = sum(other.remaining for other in jobs if other.rank < job.rank)
        assert ahead[job.job_id].to_turn >= before - 1e-6


@given(TENANTS, st.data(), st.floats(0, 1e6))
def test_more_work_of_others_never_ends_a_job_earlier(
    tenants: dict[int, TenantWork], data: st.DataObject, more: float
) -> None:
    mine, other = (data.draw(st.sampled_from(sorted(tenants))) for _ in range(2))
    before = PoolShares(tenants, 10.0).seconds_until(mine, tenants[mine].remaining)
    added = replace(tenants[other], remaining=tenants[other].remaining + more)
    after = PoolShares(tenants | {other: added}, 10.0).seconds_until(mine, tenants[mine].remaining)
    assert after >= before * (1 - 1e-9)


@given(TENANTS, st.data(), st.integers(2, 10))
def test_a_higher_weight_never_ends_a_job_later(
    tenants: dict[int, TenantWork], data: st.DataObject, times: int
) -> None:
    mine = data.draw(st.sampled_from(sorted(tenants)))
    work = tenants[mine].remaining
    before = PoolShares(tenants, 10.0).seconds_until(mine, work)
    heavier = replace(tenants[mine], weight=tenants[mine].weight * times)
    after = PoolShares(tenants | {mine: heavier}, 10.0).seconds_until(mine, work)
    assert after <= before * (1 + 1e-9)


@given(TENANTS, st.data(), st.floats(0.1, 1e4), st.floats(0, 0.5), NEW_JOBS)
def test_quantiles_and_probabilities_agree(
    tenants: dict[int, TenantWork], data: st.DataObject, rate: float, spread: float, new: NewJobs
) -> None:
    mine = data.draw(st.sampled_from(sorted(tenants)))
    job = JobWork(UUID(int=1), 0, 0.0, tenants[mine].remaining)
    busy = {key: replace(one, new_jobs=new) for key, one in tenants.items()}
    pool = PoolEstimate(busy, PoolRate(rate, rate, spread, 16.0))
    end = pool.job_end(mine, work_ahead([job])[job.job_id], job.remaining)
    assert 0 < end.p50_s < end.p90_s
    assert end.miss_probability(end.p50_s) == pytest.approx(0.5)
    assert end.miss_probability(end.p90_s) == pytest.approx(0.1)
    at = [end.miss_probability(end.p50_s * factor) for factor in (0.5, 0.9, 1.1, 2.0)]
    assert at == sorted(at, reverse=True)
    without = PoolEstimate(tenants, PoolRate(rate, rate, spread, 16.0))
    calm = without.job_end(mine, work_ahead([job])[job.job_id], job.remaining)
    assert end.p50_s >= calm.p50_s * (1 - 1e-9)


@given(NEW_JOBS, st.floats(0.1, 1e5), st.floats(0.1, 1e7))
def test_new_jobs_add_no_more_than_their_limit(new: NewJobs, within_s: float, limit: float) -> None:
    added = AddedWork()
    added.add(new, within_s=within_s, limit=limit)
    assert 0 <= added.mean <= limit * (1 + 1e-9)
    assert added.quantile(0.0) <= added.quantile(1.28) or added.mean == 0
    assert new.mean_work(limit) <= limit * (1 + 1e-9)
