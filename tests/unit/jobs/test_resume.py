"""Goal: resumed jobs stay within the window of their tenant, and none waits for ever."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.load_cache import OpenLoads
from jobs.expansion.load_sums import JobLoad
from jobs.recovery.resume import jobs_within_window

MAX = 1000


def load(number: int, outstanding: int, tenant: int = 1) -> JobLoad:
    return JobLoad(UUID(int=number), UUID(int=tenant), "pool", 5000, outstanding, 0)


def chosen_of(due: list[UUID], loads: list[JobLoad], *waiting: UUID) -> list[UUID]:
    found = OpenLoads()
    for each in loads:
        found.replace(each.job_id, each)
    return jobs_within_window(due, waiting, found, MAX)


def ids(*numbers: int) -> list[UUID]:
    return [UUID(int=number) for number in numbers]


def test_resumed_jobs_of_one_tenant_share_the_window() -> None:
    loads = [load(n, 600) for n in (1, 2, 3)]
    assert chosen_of(ids(1, 2, 3), loads) == ids(1)
    assert chosen_of(ids(2, 3), loads) == []
    assert chosen_of(ids(2, 3), [load(1, 300), *loads[1:]]) == ids(2)


def test_tenants_do_not_wait_for_each_other() -> None:
    loads = [load(1, 900, tenant=1), load(2, 900, tenant=2)]
    assert chosen_of(ids(1, 2), loads) == ids(1, 2)


def test_a_job_that_waits_for_another_try_fills_no_window() -> None:
    loads = [load(1, 900), load(2, 900)]
    assert chosen_of(ids(2), loads) == []
    assert chosen_of(ids(2), loads, *ids(1)) == ids(2)


def test_a_job_closed_between_the_queries_is_skipped() -> None:
    assert chosen_of(ids(1, 2), [load(2, 10)]) == ids(2)


def test_a_job_outside_of_its_hours_is_resumed_later() -> None:
    waiting = load(1, 10)._replace(not_before_s=1e12)
    assert chosen_of(ids(1, 2), [waiting, load(2, 10)]) == ids(2)


@given(
    due=st.lists(st.integers(0, 2000), max_size=20),
    others=st.lists(st.integers(0, 500), max_size=5),
)
def test_the_window_is_not_exceeded_unless_it_was_empty(due: list[int], others: list[int]) -> None:
    loads = [load(n, out) for n, out in enumerate([*due, *others])]
    chosen = chosen_of([load.job_id for load in loads[: len(due)]], loads)
    out = sum(others)
    for job_id in chosen:
        its = loads[job_id.int].outstanding
        assert not out or out + its <= MAX
        out += its
    if due and not sum(others):
        assert chosen
