"""Goal: no tenant exceeds its window, and no job starves another job of its tenant."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from core.limits import CHUNK_ITEMS_MAX
from core.urgency import PRIORITY_DEFAULT
from jobs.expansion.windows import (
    JobLoad,
    PoolCapacity,
    WindowLimits,
    allowances,
    share_window,
    tenant_model_windows,
    window_items,
)

LIMITS = WindowLimits(window_s=10, window_items_max=20_000, read_ahead_items=100_000)


@st.composite
def load(
    draw: st.DrawFn, tenants: int = 1, models: int = 1, *, held: bool = True, ranked: bool = False
) -> JobLoad:
    total = draw(st.integers(1, 50_000))
    emitted = draw(st.integers(0, total))
    model = f"model-{draw(st.integers(1, models))}"
    return JobLoad(
        job_id=UUID(int=draw(st.integers(0, 2**128 - 1))),
        tenant_id=UUID(int=draw(st.integers(1, tenants))),
        model=model,
        pool=f"pool-{model}",
        total=total,
        emitted=emitted,
        terminal=draw(st.integers(0, emitted)),
        is_leased=draw(st.just(True) if held else st.booleans()),
        priority=draw(st.integers(0, 9)) if ranked else PRIORITY_DEFAULT,
    )


def loads(
    tenants: int = 1, models: int = 1, *, held: bool = True, ranked: bool = False
) -> st.SearchStrategy[list[JobLoad]]:
    jobs = load(tenants, models, held=held, ranked=ranked)
    return st.lists(jobs, max_size=12, unique_by=lambda job: job.job_id)


capacities = st.builds(PoolCapacity, st.floats(0, 1e9), st.integers(0, 100_000))
windows = st.integers(CHUNK_ITEMS_MAX, 20_000)


@given(jobs=loads(), window=windows)
def test_shares_are_positive_and_within_the_window(jobs: list[JobLoad], window: int) -> None:
    shares = share_window(jobs, window)
    by_id = {job.job_id: job for job in jobs}
    assert all(0 < count <= by_id[job_id].remaining for job_id, count in shares.items())
    outstanding = sum(job.outstanding for job in jobs)
    assert sum(shares.values()) <= max(0, window - outstanding)


@given(jobs=loads(ranked=True, held=False), window=windows)
def test_the_lowest_rank_always_gets_a_grain(jobs: list[JobLoad], window: int) -> None:
    shares = share_window(jobs, window)
    grain = max(1, min(CHUNK_ITEMS_MAX, window // 4))
    free = max(0, window - sum(job.outstanding for job in jobs))
    assert sum(shares.values()) <= max(free, grain)
    emitting = [job for job in jobs if job.is_leased and job.remaining]
    lowest = [job for job in jobs if emitting and job.rank <= min(one.rank for one in emitting)]
    after = sum(job.outstanding + shares.get(job.job_id, 0) for job in lowest)
    # A remainder smaller than a grain may be left for the next round.
    wanted = sum(job.remaining for job in lowest if job.is_leased)
    if sum(shares.values()) > free:
        assert set(shares) <= {job.job_id for job in lowest}
    assert after >= min(grain, wanted) or any(
        shares.get(job.job_id, 0) == job.remaining for job in lowest if job.is_leased
    )


@given(jobs=loads(), window=windows)
def test_shares_leave_less_than_a_grain_while_anything_remains(
    jobs: list[JobLoad], window: int
) -> None:
    shares = share_window(jobs, window)
    free = window - sum(job.outstanding for job in jobs) - sum(shares.values())
    left = [job.remaining - shares.get(job.job_id, 0) for job in jobs]
    smallest = min((count for count in left if count), default=None)
    if smallest is not None and free > 0:
        assert free < min(CHUNK_ITEMS_MAX, max(1, window // 4), smallest)


@given(jobs=loads(), window=windows)
def test_a_chunk_goes_to_the_job_with_the_fewest_outstanding(
    jobs: list[JobLoad], window: int
) -> None:
    shares = share_window(jobs, window)
    grain = max(1, min(CHUNK_ITEMS_MAX, window // 4))
    after = {job.job_id: job.outstanding + shares.get(job.job_id, 0) for job in jobs}
    unsatisfied = [job.job_id for job in jobs if job.remaining - shares.get(job.job_id, 0) >= grain]
    for job_id, count in shares.items():
        if count < grain:
            continue  # the remainder of a job is smaller than a grain
        for other in unsatisfied:
            assert after[job_id] <= after[other] + CHUNK_ITEMS_MAX + grain  # a chunk and a tail


@given(jobs=loads(held=False), window=windows)
def test_a_job_without_holder_gets_no_share(jobs: list[JobLoad], window: int) -> None:
    shares = share_window(jobs, window)
    assert not any(job.job_id in shares for job in jobs if not job.is_leased)
    free = window - sum(job.outstanding for job in jobs)
    wanted = sum(job.remaining for job in jobs if job.is_leased)
    # Less than a grain may be left for later.
    assert sum(shares.values()) > min(free, wanted) - CHUNK_ITEMS_MAX


@given(jobs=loads(tenants=4, models=2), capacity=capacities)
def test_a_tenant_model_without_outstanding_items_gets_a_chunk(
    jobs: list[JobLoad], capacity: PoolCapacity
) -> None:
    allowed = allowances(jobs, tenant_model_windows(jobs, {"pool-model-1": capacity}, LIMITS))
    for pair in {(job.tenant_id, job.model) for job in jobs}:
        mine = [job for job in jobs if (job.tenant_id, job.model) == pair]
        if not any(job.outstanding for job in mine):
            remaining = sum(job.remaining for job in mine)
            got = sum(allowed.get(job.job_id, 0) for job in mine)
            # Grains of at most a quarter of the smallest window: less than one may be left over.
            assert got >= min(CHUNK_ITEMS_MAX, remaining) - CHUNK_ITEMS_MAX // 4


@given(jobs=loads(tenants=4, models=2), capacity=capacities)
def test_all_windows_together_use_half_of_the_read_ahead(
    jobs: list[JobLoad], capacity: PoolCapacity
) -> None:
    pools = {"pool-model-1": capacity, "pool-model-2": capacity}
    allowed = allowances(jobs, tenant_model_windows(jobs, pools, LIMITS))
    pairs = {(job.tenant_id, job.model) for job in jobs}
    for pair in pairs:
        mine = [job for job in jobs if (job.tenant_id, job.model) == pair]
        new = sum(allowed.get(job.job_id, 0) for job in mine)
        if new:
            total = new + sum(job.outstanding for job in mine)
            assert total <= LIMITS.window_items_max
    active = sum(
        any(j.outstanding or j.remaining for j in jobs if (j.tenant_id, j.model) == pair)
        for pair in pairs
    )
    window = window_items(capacity, LIMITS, active)
    assert window * active <= max(LIMITS.read_ahead_items // 2, active * CHUNK_ITEMS_MAX)


@given(capacity=st.none() | capacities, active=st.integers(0, 10_000))
def test_a_window_has_a_lower_and_an_upper_limit(
    capacity: PoolCapacity | None, active: int
) -> None:
    assert CHUNK_ITEMS_MAX <= window_items(capacity, LIMITS, active) <= LIMITS.window_items_max


def test_a_window_holds_ten_seconds_of_the_pool() -> None:
    assert window_items(PoolCapacity(150.0, 8), LIMITS, 1) == 1500
    assert window_items(PoolCapacity(0.0, 256), LIMITS, 1) == 512
    assert window_items(PoolCapacity(1e9, 8), LIMITS, 1) == 20_000
    assert window_items(PoolCapacity(1e9, 8), LIMITS, 10) == 5_000
    assert window_items(PoolCapacity(float("inf"), 8), LIMITS, 1) == 20_000
    assert window_items(None, LIMITS, 1) == 100


def test_items_beyond_the_window_belong_to_the_lowest_rank() -> None:
    def job(number: int, total: int, *, priority: int, emitted: int = 0) -> JobLoad:
        ids = UUID(int=number), UUID(int=1)
        return JobLoad(*ids, "m", "p", total, emitted, 0, is_leased=True, priority=priority)

    urgent, rest = sorted((0, 9), key=lambda priority: job(0, 1, priority=priority).rank)
    fills = job(1, 100, priority=rest, emitted=100)
    first, second = job(2, 20, priority=urgent), job(3, 10, priority=urgent)
    tail = job(4, 3, priority=rest)  # would fit into what is left of the grain
    assert share_window([fills, first, second, tail], 100) == {first.job_id: 20}
