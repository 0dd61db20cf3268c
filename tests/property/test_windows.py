"""Goal: no pool exceeds its budget, no tenant its window, and no job starves another one."""

from collections import Counter
from collections.abc import Callable
from operator import mul
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from core.limits import CHUNK_ITEMS_MAX
from core.tenant_claims import TenantClaim
from core.urgency import PRIORITY_DEFAULT
from jobs.expansion import windows as rules
from jobs.expansion.allowances import allowances as allowances_of
from jobs.expansion.allowances import share_window as share_window_of
from jobs.expansion.load_sums import JobLoad, LoadSums, TenantPool, TenantPoolLoad, tail_items
from jobs.expansion.windows import PoolCapacity, WindowLimits, remaining_of

LIMITS = WindowLimits(
    window_s=3, window_items_max=1_000_000, read_ahead_items=20_000, read_ahead_bytes=2**26
)


UNLEASED = 1 << 127
"""From this id on, no process has leased a job."""


def is_leased(job: JobLoad) -> bool:
    return job.job_id.int < UNLEASED


def pool_budgets(
    jobs: list[JobLoad], alive: dict[str, PoolCapacity], limits: WindowLimits, batchers: int
) -> dict[str, int]:
    return rules.pool_budgets(LoadSums.of(jobs).by_pool, alive, limits, batchers)


def windows_of(
    jobs: list[JobLoad],
    budgets: dict[str, int],
    *,
    turn: int = 7,
    claim: Callable[[UUID, str], TenantClaim] = lambda _tenant, _pool: TenantClaim(),
) -> dict[TenantPool, int]:
    remaining = remaining_of(job for job in jobs if is_leased(job))
    sums = LoadSums.of(jobs).by_tenant_pool
    return rules.tenant_windows(sums, remaining, budgets, items_max=20_000, turn=turn, claim=claim)


def allowances(jobs: list[JobLoad], windows: dict[TenantPool, int]) -> dict[UUID, int]:
    leased = [job for job in jobs if is_leased(job)]
    return allowances_of(leased, LoadSums.of(jobs).by_tenant_pool, windows)


def share_window(jobs: list[JobLoad], window: int) -> dict[UUID, int]:
    """Share a window among jobs of one tenant and pool."""
    (load,) = LoadSums.of(jobs).by_tenant_pool.values() or (TenantPoolLoad(),)
    return share_window_of([job for job in jobs if is_leased(job)], load, window)


@st.composite
def load(
    draw: st.DrawFn, tenants: int = 1, models: int = 1, *, held: bool = True, ranked: bool = False
) -> JobLoad:
    total = draw(st.integers(1, 50_000))
    emitted = draw(st.integers(0, total))
    if total - emitted <= tail_items(total):
        emitted = total  # a tail has a rank of its own
    model = f"model-{draw(st.integers(1, models))}"
    return JobLoad(
        job_id=UUID(int=draw(st.integers(0, UNLEASED - 1 if held else 2**128 - 1))),
        tenant_id=UUID(int=draw(st.integers(1, tenants))),
        pool=f"pool-{model}",
        total=total,
        emitted=emitted,
        terminal=draw(st.integers(0, emitted)),
        priority=draw(st.integers(0, 9)) if ranked else PRIORITY_DEFAULT,
        item_bytes=draw(st.integers(0, 300_000)),
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
    emitting = [job for job in jobs if is_leased(job) and job.remaining]
    lowest = [job for job in jobs if emitting and job.rank <= min(one.rank for one in emitting)]
    after = sum(job.outstanding + shares.get(job.job_id, 0) for job in lowest)
    # A remainder smaller than a grain may be left for the next round.
    wanted = sum(job.remaining for job in lowest if is_leased(job))
    if sum(shares.values()) > free:
        assert set(shares) <= {job.job_id for job in lowest}
    assert after >= min(grain, wanted) or any(
        shares.get(job.job_id, 0) == job.remaining for job in lowest if is_leased(job)
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
    assert not any(job.job_id in shares for job in jobs if not is_leased(job))
    free = window - sum(job.outstanding for job in jobs)
    wanted = sum(job.remaining for job in jobs if is_leased(job))
    # Less than a grain may be left for later.
    assert sum(shares.values()) > min(free, wanted) - CHUNK_ITEMS_MAX


pools_alive = st.dictionaries(
    st.sampled_from([f"pool-model-{number}" for number in range(1, 5)]), capacities
)


@given(jobs=loads(models=4), alive=pools_alive, batchers=st.integers(0, 3))
def test_budgets_fit_into_the_read_ahead_of_the_batchers(
    jobs: list[JobLoad], alive: dict[str, PoolCapacity], batchers: int
) -> None:
    budgets = pool_budgets(jobs, alive, LIMITS, batchers)
    total = LIMITS.read_ahead_items * max(1, batchers)
    assert budgets.keys() == {job.pool for job in jobs if job.outstanding or job.remaining}
    assert sum(budgets.values()) <= total
    dead = [items for pool, items in budgets.items() if pool not in alive]
    assert all(items <= CHUNK_ITEMS_MAX for items in dead)
    assert sum(dead) <= total / 20
    assert all(items >= 1 for pool, items in budgets.items())


@given(jobs=loads(tenants=4, models=2), budget=st.integers(0, 20_000))
def test_tenants_exceed_the_budget_by_all_of_it_at_most(jobs: list[JobLoad], budget: int) -> None:
    budgets = {job.pool: budget for job in jobs}
    allowed = allowances(jobs, windows_of(jobs, budgets))
    for pool in budgets:
        mine = [job for job in jobs if job.pool == pool]
        new = sum(allowed.get(job.job_id, 0) for job in mine)
        free = max(0, budget - sum(job.outstanding for job in mine))
        grain = CHUNK_ITEMS_MAX * len({job.tenant_id for job in mine})  # of a lower rank, each
        assert new <= free + budget + (grain if new > free else 0)


@given(jobs=loads(tenants=6), budget=st.integers(1200, 20_000))
def test_a_tenant_without_outstanding_items_gets_items_at_once(
    jobs: list[JobLoad], budget: int
) -> None:
    allowed = allowances(jobs, windows_of(jobs, {"pool-model-1": budget}))
    outstanding: Counter[UUID] = Counter()
    remaining: Counter[UUID] = Counter()
    got: Counter[UUID] = Counter()
    for job in jobs:
        outstanding[job.tenant_id] += job.outstanding
        remaining[job.tenant_id] += job.remaining
        got[job.tenant_id] += allowed.get(job.job_id, 0)
    for tenant, items in remaining.items():
        if not outstanding[tenant]:
            if outstanding.total() > budget:  # what exceeds the budget has a limit, too
                assert got[tenant] >= min(1, items)
                continue
            # Grains of a quarter of the window: less than one may be left over.
            assert got[tenant] >= min(CHUNK_ITEMS_MAX, items) - CHUNK_ITEMS_MAX // 4


def tenant_job(number: int, total: int, *, emitted: int = 0, terminal: int = 0) -> JobLoad:
    ids = UUID(int=number), UUID(int=number)
    return JobLoad(*ids, "p", total, emitted, terminal)


def test_a_newcomer_gets_its_share_beyond_a_full_budget_and_the_earlier_tenant_nothing() -> None:
    earlier = tenant_job(1, 60_000, emitted=20_000)
    newcomer = tenant_job(2, 60_000)
    windows = windows_of([earlier, newcomer], {"p": 20_000})
    assert windows == {earlier.tenant_pool: 10_000, newcomer.tenant_pool: 10_000}
    assert allowances([earlier, newcomer], windows) == {newcomer.job_id: 10_000}
    drained = earlier._replace(terminal=12_000)
    assert windows_of([drained, newcomer], {"p": 20_000}) == {
        earlier.tenant_pool: 10_000,
        newcomer.tenant_pool: 10_000,
    }


def test_tenants_take_turns_in_a_small_budget_whatever_their_jobs() -> None:
    large, busy = tenant_job(1, 5000, emitted=3000, terminal=3000), tenant_job(2, 9, emitted=1)
    small = [tenant_job(n, 1)._replace(tenant_id=UUID(int=3 + n % 2)) for n in range(3, 43)]
    turns: Counter[int] = Counter()
    for turn in range(600):
        windows = windows_of([large, busy, *small], {"p": 2}, turn=turn)
        assert windows[busy.tenant_pool] == 1
        turns.update(key[0].int for key, items in windows.items() if items)
    assert turns.total() == 1200
    assert all(160 < turns[tenant] < 240 for tenant in (1, 3, 4))


def weight_of(weights: dict[int, int]) -> Callable[[UUID, str], TenantClaim]:
    """Return claims of these weights by tenant; others weigh 1."""
    return lambda tenant_id, _pool: TenantClaim(weights.get(tenant_id.int, 1))


def test_tenants_share_a_budget_by_their_weights_and_each_gets_an_item() -> None:
    light, heavy = tenant_job(1, 60_000), tenant_job(3, 60_000)

    claim = weight_of({1: 1, 3: 3})
    windows = windows_of([light, heavy], {"p": 8_002}, claim=claim)
    assert windows == {light.tenant_pool: 2_001, heavy.tenant_pool: 6_001}
    windows = windows_of([light, heavy._replace(total=500)], {"p": 8_000}, claim=claim)
    assert windows == {light.tenant_pool: 7_500, heavy.tenant_pool: 500}
    windows = windows_of(
        [light, heavy],
        {"p": 2},
        claim=weight_of({3: 1000}),
    )
    assert windows == {light.tenant_pool: 1, heavy.tenant_pool: 1}


def test_a_heavy_tenant_that_comes_gets_its_share_at_once() -> None:
    earlier = tenant_job(1, 60_000, emitted=20_000)
    heavy = tenant_job(3, 60_000)
    windows = windows_of([earlier, heavy], {"p": 20_000}, claim=weight_of({1: 1, 3: 3}))
    assert windows == {earlier.tenant_pool: 5_001, heavy.tenant_pool: 14_999}


def test_a_light_tenant_that_comes_gets_an_item_at_once() -> None:
    heavy, light = tenant_job(2, 60_000, emitted=600), tenant_job(1, 60_000)
    windows = windows_of(
        [heavy, light],
        {"p": 128},
        claim=weight_of({2: 1000}),
    )
    assert windows[light.tenant_pool] == 1


def test_a_tenant_alone_fills_the_buffer_of_one_batcher() -> None:
    alone = tenant_job(1, 500_000)
    assert windows_of([alone], {"p": 80_000}) == {alone.tenant_pool: 20_000}


def test_the_budget_of_a_pool_follows_its_rate_and_the_batchers() -> None:
    def budget(capacity: PoolCapacity | None, *, batchers: int = 1) -> int:
        alive = {} if capacity is None else {"p": capacity}
        return pool_budgets([tenant_job(1, 5)], alive, LIMITS, batchers)["p"]

    assert budget(PoolCapacity(150.0, 8)) == 450
    assert budget(PoolCapacity(0.1, 8)) == 32
    assert budget(PoolCapacity(0.0, 256)) == 1024
    assert budget(PoolCapacity(1e9, 8)) == 20_000
    assert budget(PoolCapacity(float("inf"), 8), batchers=3) == 60_000
    assert budget(None) == CHUNK_ITEMS_MAX


def test_items_of_pools_that_lost_their_capacity_shrink_the_other_budgets() -> None:
    def budget(stranded: int) -> int:
        jobs = [tenant_job(1, 5), tenant_job(2, 90_000, emitted=stranded)._replace(pool="dead")]
        return pool_budgets(jobs, {"p": PoolCapacity(1e9, 64)}, LIMITS, 1)["p"]

    assert [budget(items) for items in (20_000, 30_000, 80_000)] == [19_900, 9_900, 4_900]


def test_items_whose_version_no_replica_has_shrink_the_budgets_as_those_of_lost_pools() -> None:
    def budget(items: int, item_bytes: int = 0) -> int:
        job = tenant_job(2, 90_000, emitted=items)._replace(item_bytes=item_bytes)
        unserved = LoadSums.of([job]).by_pool.values()
        pools = LoadSums.of([tenant_job(1, 5)._replace(item_bytes=1024)]).by_pool
        alive = {"p": PoolCapacity(1e9, 64)}
        return rules.pool_budgets(pools, alive, LIMITS, 1, unserved)["p"]

    assert [budget(n) for n in (0, 20_000, 30_000, 80_000)] == [20_000, 20_000, 10_000, 5_000]
    assert budget(20_000, item_bytes=16_384) == 16_384  # a quarter of the bytes


@given(jobs=loads(models=4), alive=pools_alive, batchers=st.integers(0, 3))
def test_budgets_fit_into_the_bytes_of_the_read_ahead(
    jobs: list[JobLoad], alive: dict[str, PoolCapacity], batchers: int
) -> None:
    budgets = pool_budgets(jobs, alive, LIMITS, batchers)
    byte_count = 0.0
    for pool in budgets.keys() & alive.keys():
        mine = [job for job in jobs if job.pool == pool]
        weights = [job.outstanding + job.remaining for job in mine]
        sizes = [job.logged_item_bytes for job in mine]
        mean = sum(map(mul, weights, sizes)) / sum(weights)
        byte_count += budgets[pool] * int(mean) if budgets[pool] > 1 else 0
    assert byte_count <= LIMITS.read_ahead_bytes * max(1, batchers)


def test_a_pool_of_large_items_leaves_the_buffers_to_others() -> None:
    large = tenant_job(1, 90_000)._replace(pool="large", item_bytes=64 * 1024)
    small = tenant_job(2, 90_000)._replace(item_bytes=1024)
    by_reference = tenant_job(3, 90_000)._replace(pool="references", item_bytes=10**6)
    alive = dict.fromkeys(("large", "p", "references"), PoolCapacity(2000.0, 64))
    budgets = pool_budgets([large, small, by_reference], alive, LIMITS, 1)
    assert budgets == {"large": 930, "p": 6000, "references": 6000}


def test_many_pools_without_capacity_leave_almost_all_to_the_others() -> None:
    dead = [tenant_job(n, 500)._replace(pool=f"dead-{n}") for n in range(2, 1002)]
    budgets = pool_budgets([tenant_job(1, 5), *dead], {"p": PoolCapacity(1e9, 64)}, LIMITS, 1)
    assert budgets["p"] == 19_000
    assert sum(budgets.values()) == 20_000


def test_items_beyond_the_window_belong_to_the_lowest_rank() -> None:
    def job(number: int, total: int, *, priority: int, emitted: int = 0) -> JobLoad:
        ids = UUID(int=number), UUID(int=1)
        return JobLoad(*ids, "p", total, emitted, 0, priority=priority)

    urgent, rest = sorted((0, 9), key=lambda priority: job(0, 1, priority=priority).rank)
    fills = job(1, 100, priority=rest, emitted=100)
    first, second = job(2, 20, priority=urgent), job(3, 10, priority=urgent)
    tail = job(4, 3, priority=rest)  # would fit into what is left of the grain
    assert share_window([fills, first, second, tail], 100) == {first.job_id: 20}
