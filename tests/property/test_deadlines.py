"""Goal: deadlines that can be met are met, the fewest others are late, and no job starves."""

from collections import Counter
from itertools import combinations
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.tenant_claims import PLAIN_CLAIM
from core.urgency import rank, relegated_rank, urgent_rank
from jobs.expansion.allowances import share_window
from jobs.expansion.deadline_planner import DeadlinePlanner, find_pressure, supplies
from jobs.expansion.deadlines import (
    NO_PLAN,
    DeadlinePlan,
    Supply,
    plan_deadlines,
    pressed_until,
    trickle_items,
)
from jobs.expansion.load_sums import JobLoad, LoadSums, tail_items
from tests.support.clock import ManualClock

NOW = 1e9
TENANT = UUID(int=1)
KEY = TENANT, "p"


def job(number: int, total: int, left_s: float, *, emitted: int = 0, priority: int = 5) -> JobLoad:
    """Return a job with `left_s` seconds until its deadline."""
    return JobLoad(
        UUID(int=number), TENANT, "p", total, emitted, emitted, priority, left_s,
        deadline_s=NOW + left_s, created_s=float(number),
    )  # fmt: skip


def supply(items_per_s: float, lag_s: float = 0.0) -> Supply:
    return Supply(items_per_s, NOW, lag_s)


def numbers(jobs: dict[UUID, JobLoad]) -> list[int]:
    return [job_id.int for job_id in jobs]


def names(plan: DeadlinePlan) -> tuple[list[int], list[int]]:
    return [one.int for one in plan.urgent], [one.int for one in plan.relegated]


sets = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 400)), min_size=1, max_size=7)


def jobs_of(given_set: list[tuple[int, int]]) -> list[JobLoad]:
    return [job(n, total, left_s) for n, (total, left_s) in enumerate(given_set, start=1)]


def fits(jobs: list[JobLoad], rate: float) -> bool:
    """Whether all jobs end in time in the order of their deadlines."""
    total = 0
    for one in sorted(jobs, key=lambda one: one.deadline_s):
        total += one.total
        if total > rate * (one.deadline_s - NOW):
            return False
    return True


@given(sets)
def test_as_few_jobs_as_possible_are_relegated(given_set: list[tuple[int, int]]) -> None:
    jobs = jobs_of(given_set)
    late = plan_deadlines(jobs, supply(1.0)).relegated
    if fits(jobs, 1.0):
        assert not late
        return
    # Relegated jobs keep 5 % of the rate.
    kept_max = max(
        count
        for count in range(len(jobs) + 1)
        if any(fits([*chosen], 0.95) for chosen in combinations(jobs, count))
    )
    assert len(late) == (len(jobs) - kept_max if kept_max else 0)
    if late:
        assert fits([one for one in jobs if one.job_id not in late], 0.95)


@given(sets, st.floats(0, 3))
def test_an_overloaded_tenant_keeps_jobs_that_can_still_end_in_time(
    given_set: list[tuple[int, int]], lag_s: float
) -> None:
    jobs = jobs_of(given_set)
    late = plan_deadlines(jobs, supply(1.0, lag_s)).relegated
    kept = [one for one in jobs if one.job_id not in late]
    if fits(jobs, 1.0):  # then none is given up, whatever the lag
        assert not late
    elif late:  # what is kept can end in time, though it runs only after the lag
        assert fits([one._replace(deadline_s=one.deadline_s - lag_s) for one in kept], 0.95)


outstanding_sets = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 300), st.integers(1, 400)),
    min_size=1,
    max_size=7,
)


@given(outstanding_sets, st.floats(0, 10))
def test_only_jobs_with_items_to_emit_are_relegated(
    given_set: list[tuple[int, int, int]], lag_s: float
) -> None:
    jobs = [
        job(n, total, left_s)._replace(emitted=min(total, emitted))
        for n, (total, emitted, left_s) in enumerate(given_set, start=1)
    ]
    plan = plan_deadlines(jobs, supply(1.0, lag_s))
    assert all(one.remaining for one in plan.relegated.values())
    if plan.relegated:
        kept = [one for one in jobs if one.remaining and one.job_id not in plan.relegated]
        assert fits([one._replace(deadline_s=one.deadline_s - lag_s) for one in kept], 0.95)


def test_in_overload_a_job_whose_items_are_all_on_the_log_stays() -> None:
    ending = job(1, 100, 3)._replace(emitted=100)
    almost = job(2, 100, 300)._replace(emitted=90)
    jobs = [ending, almost, job(3, 10**6, 400)]
    plan = plan_deadlines(jobs, supply(1.0, lag_s=6.0))
    assert list(plan.relegated) == [jobs[2].job_id]
    assert plan_deadlines([ending, jobs[2]], supply(1.0, lag_s=6.0)) is NO_PLAN


def test_what_a_relegated_job_near_its_end_has_outstanding_takes_nothing_from_the_others() -> None:
    near_end = job(1, 1000, 5)._replace(emitted=999)
    late = [job(n, 10**6, 2000) for n in (2, 3)]
    jobs = [near_end, *late, job(4, 900, 1000)]
    plan = plan_deadlines(jobs, supply(1.0, lag_s=6.0))
    assert names(plan)[1] == [1, 2, 3]
    (load,) = LoadSums.of(jobs).by_tenant_pool.values()
    shares = share_window(jobs, load, 1500, plan)
    assert shares[late[0].job_id] + shares[late[1].job_id] == 75


@given(sets, st.floats(0, 3))
def test_comfortable_jobs_have_no_plan(given_set: list[tuple[int, int]], lag_s: float) -> None:
    jobs = jobs_of(given_set)
    total = 0
    comfortable = True
    for one in sorted(jobs, key=lambda one: one.deadline_s):
        total += one.total
        comfortable &= total <= 0.8 * 2.0 * (one.deadline_s - NOW - lag_s)
    plan = plan_deadlines(jobs, supply(2.0, lag_s))
    assert (plan is NO_PLAN) >= comfortable
    if fits(jobs, 2.0) and plan is NO_PLAN:
        assert comfortable


@given(sets, st.floats(0, 3))
def test_only_jobs_up_to_the_pressure_need_to_be_planned(
    given_set: list[tuple[int, int]], lag_s: float
) -> None:
    jobs = jobs_of(given_set)
    (load,) = LoadSums.of(jobs).by_tenant_pool.values()
    until_s = pressed_until(load.due[5], supply(2.0, lag_s))
    plan = plan_deadlines(jobs, supply(2.0, lag_s))
    if until_s is None:
        assert plan is NO_PLAN
        return
    near = [one for one in jobs if one.deadline_s < until_s]
    has_later = len(near) < len(jobs)
    assert names(plan_deadlines(near, supply(2.0, lag_s), has_later=has_later)) == names(plan)
    assert find_pressure({KEY: load}, {KEY: supply(2.0, lag_s)})[KEY].has_later == has_later


def test_an_unknown_rate_plans_nothing() -> None:
    jobs = [job(1, 100, 1), job(2, 100, 1)]
    (load,) = LoadSums.of(jobs).by_tenant_pool.values()
    assert plan_deadlines(jobs, supply(0.0)) is NO_PLAN
    assert pressed_until(load.due[5], supply(0.0)) is None


def test_urgent_jobs_are_in_the_order_of_their_deadlines() -> None:
    jobs = [job(1, 400, 1000), job(2, 850, 950), job(3, 50, 100), job(4, 100, 5000)]
    plan = plan_deadlines(jobs, supply(1.3))
    assert names(plan) == ([3, 2, 1], [])
    order_keys = [plan.order_key(one) for one in (jobs[2], jobs[1], jobs[0], jobs[3])]
    assert order_keys == sorted(order_keys)
    assert [key[0] for key in order_keys] == [urgent_rank(5)] * 3 + [rank(5, 5000)]
    assert plan.order_key(jobs[0]._replace(priority=6)) == (rank(6, 1000), 0.0)


# A simulation in steps of one second; what is emitted in a step has run at its end.


def simulate(
    jobs: list[JobLoad], rate: int, lag_s: float = 2.0, *, plans: bool = True
) -> dict[int, int]:
    """Return the second in which each job ended; served until all have ended or are past."""
    ended: dict[int, int] = {}
    horizon = int(max(one.left_s for one in jobs)) + 1
    for second in range(horizon):
        now_s = NOW + second
        open_jobs = [
            one._replace(left_s=one.deadline_s - now_s)
            for one in jobs
            if one.remaining and one.deadline_s > now_s
        ]
        if not open_jobs:
            break
        plan = plan_deadlines(open_jobs, Supply(float(rate), now_s, lag_s), second)
        (load,) = LoadSums.of(open_jobs).by_tenant_pool.values()
        shares = share_window(open_jobs, load, rate, plan if plans else NO_PLAN)
        assert sum(shares.values()) <= rate
        jobs = [
            one._replace(emitted=done, terminal=done)
            if (done := one.emitted + shares.get(one.job_id, 0)) != one.emitted
            else one
            for one in jobs
        ]
        for one in jobs:
            if not one.remaining:
                ended.setdefault(one.job_id.int, second + 1)
    served = {one.job_id.int: one.emitted for one in jobs}
    return {number: ended.get(number, -count) for number, count in served.items()}


@st.composite
def feasible(draw: st.DrawFn) -> tuple[list[JobLoad], int]:
    """Draw a set that ends in time by EDF, some of it with no more than 3 % to spare."""
    rate = draw(st.sampled_from([4000, 20_000]))
    works = draw(st.lists(st.integers(1, 40), min_size=1, max_size=8))
    jobs, total, left_s = [], 0, 0.0
    for number, work in enumerate(works, start=1):
        total += work * rate // 2
        spare = draw(st.sampled_from([1.03, 1.03, 1.2, 3.0]))
        left_s = max(left_s, float(int(spare * total / rate) + 2))
        jobs.append(job(number, work * rate // 2, left_s))
    return draw(st.permutations(jobs)), rate


@given(feasible())
def test_a_set_that_can_end_in_time_does(given_set: tuple[list[JobLoad], int]) -> None:
    jobs, rate = given_set
    ended = simulate(jobs, rate)
    for one in jobs:
        assert 0 < ended[one.job_id.int] <= one.left_s


def test_sharing_alone_would_miss_deadlines_that_are_met() -> None:
    jobs = [job(2, 57 * 80, 127), job(1, 69 * 80, 125)]
    assert simulate(jobs, 80) == {1: 69, 2: 126}
    assert simulate(jobs, 80, plans=False)[1] < 0  # it has not ended


@given(
    works=st.lists(st.integers(2, 40), min_size=1, max_size=5),
    hopeless=st.lists(st.integers(2, 10), min_size=1, max_size=3),
)
def test_jobs_that_cannot_end_leave_the_others_in_time_and_do_not_starve(
    works: list[int], hopeless: list[int]
) -> None:
    rate, horizon = 4000, 200
    jobs, total = [], 0
    for number, work in enumerate(works, start=1):
        total += work * rate // 10
        jobs.append(job(number, work * rate // 10, int(1.3 * total / rate) + 4))
    late = [job(100 + n, factor * horizon * rate, horizon - n) for n, factor in enumerate(hopeless)]
    ended = simulate([*jobs, *late], rate)
    for one in jobs:
        assert 0 < ended[one.job_id.int] <= one.left_s
    for one in late:
        assert -ended[one.job_id.int] >= 0.03 * rate * one.left_s / len(late)


@pytest.mark.parametrize("window", [1, 2, 7, 19, 20, 100, 12_345])
def test_the_trickle_is_a_twentieth_of_the_windows(window: int) -> None:
    turns = 1000
    items = sum(trickle_items(window, turn) for turn in range(turns))
    assert items == pytest.approx(0.05 * window * turns, rel=0.35)
    assert trickle_items(0, 0) == 0


def test_a_small_window_is_left_to_the_others_in_most_turns() -> None:
    urgent, late = job(1, 280, 310), job(2, 10**6, 320)
    got: Counter[int] = Counter()
    for turn in range(400):
        plan = plan_deadlines([urgent, late], supply(1.0), turn)
        assert names(plan) == ([1], [2])
        (load,) = LoadSums.of([urgent, late]).by_tenant_pool.values()
        got.update({key.int: n for key, n in share_window([urgent, late], load, 1, plan).items()})
    assert (got[1] >= 380, got[2]) == (True, 20)


def test_many_relegated_jobs_take_turns() -> None:
    urgent = job(1, 900, 1000)
    late = [job(n, 10**6, 2000) for n in range(2, 42)]
    got: set[int] = set()
    for turn in range(40):
        plan = plan_deadlines([urgent, *late], supply(1.0), turn)
        assert len(plan.relegated) == 40
        (load,) = LoadSums.of([urgent, *late]).by_tenant_pool.values()
        shares = share_window([urgent, *late], load, 100, plan)
        assert shares.pop(urgent.job_id) == 95
        assert sum(shares.values()) == 5
        got |= {job_id.int for job_id in shares}
    assert got == set(range(2, 42))


def test_relegated_jobs_use_what_the_others_leave() -> None:
    plan = plan_deadlines(jobs := [job(1, 50, 60), job(2, 10**6, 320)], supply(1.0))
    (load,) = LoadSums.of(jobs).by_tenant_pool.values()
    assert share_window(jobs, load, 100, plan) == {UUID(int=1): 50, UUID(int=2): 50}


def test_slots_go_to_urgent_jobs_first_and_each_twentieth_to_a_relegated_one() -> None:
    urgent = [job(n, 350, 400 * n) for n in (2, 1)]
    late = [job(n, 10**6, 500) for n in (3, 4)]
    shared = [job(n, 10, 10**6) for n in range(10, 40)]
    lower = [job(n, 10, 100, priority=4) for n in range(50, 60)]
    jobs = [*urgent, *late, *shared]
    plan = plan_deadlines(jobs, supply(1.0))
    assert names(plan) == ([1, 2], [3, 4])
    (load,) = LoadSums.of([*jobs, *lower]).by_tenant_pool.values()
    order = [job_id.int for _, job_id in plan.in_order(load.in_order())]
    assert order == [1, 2, *range(10, 27), 3, *range(27, 40), 4, *range(50, 60)]
    assert [age for _, age in load.in_order()] == [*NO_PLAN.in_order(load.in_order())]


def test_many_urgent_jobs_leave_slots_to_relegated_ones() -> None:
    urgent = [job(n, 3, 3.5 * n) for n in range(1, 301)]
    late = [job(n, 10**6, 2000) for n in (401, 402, 403)]
    plan = plan_deadlines([*urgent, *late], supply(1.0))
    assert names(plan) == (list(range(1, 301)), [401, 402, 403])
    (load,) = LoadSums.of([*urgent, *late]).by_tenant_pool.values()
    order = [job_id.int for _, job_id in plan.in_order(load.in_order())]
    assert [order.index(number) for number in (401, 402, 403)] == [19, 39, 59]
    assert Counter(order) == Counter([*range(1, 301), 401, 402, 403])


@pytest.mark.parametrize("slots", [1, 5, 19])
def test_relegated_jobs_have_a_twentieth_of_few_slots(slots: int) -> None:
    jobs = [*(job(n, 3, 3.5 * n) for n in range(1, 31)), job(401, 10**6, 200)]
    (load,) = LoadSums.of(jobs).by_tenant_pool.values()
    got = 0
    for turn in range(40):
        plan = plan_deadlines(jobs, supply(1.0), turn)
        got += UUID(int=401) in [one for _, one in plan.in_order(load.in_order())][:slots]
    assert got == 2 * slots


def test_a_tail_is_lifted_and_never_more_than_a_tenth_of_a_job() -> None:
    assert [tail_items(n) for n in (5, 50, 1000, 10_000, 1_000_000)] == [0, 5, 100, 100, 10_000]
    tail = job(1, 1000, 86_400, emitted=900)
    others = [job(2, 1000, 3600), job(3, 1000, 3600, emitted=899)]
    assert tail.rank < min(one.rank for one in others)
    assert tail.rank > urgent_rank(5)
    assert tail._replace(emitted=1000).rank == rank(5, 86_400)
    assert relegated_rank(5) < urgent_rank(4)


def test_pressure_is_that_of_the_highest_priority_with_items_to_emit() -> None:
    higher = job(1, 100, 10_000, priority=9)
    jobs = [higher, job(2, 100, 60), job(3, 100, 70)]
    sums = LoadSums.of(jobs).by_tenant_pool
    assert find_pressure(sums, {KEY: supply(1.0)}) == {}
    sums = LoadSums.of([higher._replace(emitted=100), *jobs[1:]]).by_tenant_pool
    found = find_pressure(sums, {KEY: supply(1.0)})
    assert found[KEY].priority == 5
    assert find_pressure(sums, {}) == {}


def test_a_tenant_expects_its_part_of_the_windows_or_of_the_weights() -> None:
    other, third = (UUID(int=2), "p"), (UUID(int=3), "p")
    windows = {KEY: 900, other: 90, third: 10, (TENANT, "q"): 5}
    found = supplies(
        windows, {"p": 100.0}, lambda _tenant, _pool: PLAIN_CLAIM, now_s=NOW, lag_s=1.0
    )
    assert found[KEY] == Supply(90.0, NOW, 1.0)
    assert found[other].items_per_s == pytest.approx(100 / 3)
    assert found[TENANT, "q"].items_per_s == 0.0


def test_plans_are_made_again_after_a_second_and_go_with_the_pressure() -> None:
    clock = ManualClock()
    planner = DeadlinePlanner(clock, turn_s=3.0)
    jobs = [job(1, 90, 100), job(2, 10**6, 200)]

    def is_due() -> bool:
        return planner.is_due

    assert is_due()
    planner.refresh(LoadSums.of(jobs).by_tenant_pool, jobs, {KEY: supply(1.0)})
    assert names(planner.plans[KEY]) == ([1], [2])
    assert not is_due()
    clock.advance(1.0)
    assert is_due()
    planner.refresh(LoadSums.of(jobs).by_tenant_pool, jobs, {KEY: supply(1e9)})
    assert planner.plans == {}
