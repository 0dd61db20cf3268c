"""Goal: no tenant's jobs keep another tenant's first ones out of the slots of intake."""

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion import windows as rules
from jobs.expansion.load_sums import JobLoad, LoadSums, TenantPool

WINDOW = 1000


def select_jobs(
    loads: list[JobLoad],
    windows: dict[TenantPool, int],
    *,
    available: set[str],
    leased_ids: set[UUID],
    count_max: int,
) -> list[UUID]:
    aged = [load._replace(created_s=float(age)) for age, load in enumerate(loads)]
    held = {load.job_id for load in loads if is_leased(load)}
    return rules.select_jobs(
        LoadSums.of(aged).by_tenant_pool,
        windows,
        available=available,
        unclaimable=held - leased_ids,
        count_max=count_max,
    )


LEASED = 1 << 127
"""A bit in the ids of jobs that some process has leased."""


def is_leased(load: JobLoad) -> bool:
    return load.job_id.int >= LEASED


def job(number: int, tenant: int, *, outstanding: int = 0, is_leased: bool = False) -> JobLoad:
    job_id = UUID(int=number | (LEASED if is_leased else 0))
    return JobLoad(job_id, UUID(int=tenant), "pool", 5000, outstanding, 0)


def windows(loads: list[JobLoad]) -> dict[TenantPool, int]:
    return dict.fromkeys((load.tenant_pool for load in loads), WINDOW)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[list[JobLoad], set[UUID]]:
    """Loads, oldest first, and which of them this process holds."""
    count = draw(st.integers(0, 40))
    tenants = draw(st.lists(st.integers(1, 5), min_size=count, max_size=count))
    loads = [
        job(n, tenant, outstanding=draw(st.integers(0, 900)), is_leased=draw(st.booleans()))
        for n, tenant in enumerate(tenants, 1)
    ]
    return loads, {load.job_id for load in loads if is_leased(load) and draw(st.booleans())}


@given(crowd=crowds(), count_max=st.integers(1, 50))
def test_slots_are_filled_with_what_can_be_had(
    crowd: tuple[list[JobLoad], set[UUID]], count_max: int
) -> None:
    loads, mine = crowd
    wanted = select_jobs(
        loads, windows(loads), available={"pool"}, leased_ids=mine, count_max=count_max
    )
    candidates = {load.job_id for load in loads if load.job_id in mine or not is_leased(load)}
    assert set(wanted) <= candidates
    assert len(set(wanted)) == len(wanted) == min(count_max, len(candidates))


@given(crowd=crowds(), count_max=st.integers(1, 50))
def test_first_jobs_of_all_come_before_later_jobs_of_any(
    crowd: tuple[list[JobLoad], set[UUID]], count_max: int
) -> None:
    loads, mine = crowd
    counted: Counter[TenantPool] = Counter()
    place = {}
    for load in loads:
        counted[load.tenant_pool] += 1
        place[load.job_id] = counted[load.tenant_pool]
    wanted = select_jobs(
        loads, windows(loads), available={"pool"}, leased_ids=mine, count_max=count_max
    )
    left = [
        load.job_id
        for load in loads
        if load.job_id not in wanted and (load.job_id in mine or not is_leased(load))
    ]
    assert [place[job_id] for job_id in wanted] == sorted(place[job_id] for job_id in wanted)
    assert all(place[out] >= place[job_id] for out in left for job_id in wanted)


def test_a_new_tenant_gets_a_slot_although_all_are_taken() -> None:
    crowd = [job(n, 1, is_leased=True) for n in range(1, 501)]
    mine = {load.job_id for load in crowd[:256]}
    late = job(900, 2)
    loads = [*crowd, late]
    wanted = select_jobs(loads, windows(loads), available={"pool"}, leased_ids=mine, count_max=256)
    assert late.job_id in wanted[:2]
    assert crowd[255].job_id not in wanted


def test_who_waits_for_its_window_leaves_its_slot_to_who_need_not() -> None:
    full = [job(n, n, outstanding=WINDOW, is_leased=True) for n in range(1, 4)]
    free = job(9, 9)
    loads = [*full, free]
    mine = {load.job_id for load in full}
    wanted = select_jobs(loads, windows(loads), available={"pool"}, leased_ids=mine, count_max=3)
    assert wanted == [free.job_id, full[0].job_id, full[1].job_id]
    assert select_jobs(loads, windows(loads), available={"pool"}, leased_ids=mine, count_max=4) == [
        free.job_id,
        *(load.job_id for load in full),
    ]


def test_only_a_job_that_can_emit_takes_a_slot() -> None:
    done = JobLoad(UUID(int=LEASED | 3), UUID(int=1), "pool", 100, 100, 0)
    aside, free = job(1, 1, is_leased=True), job(2, 1)
    loads = [aside, free, done]
    leased = {done.job_id}
    assert select_jobs(
        loads, windows(loads), available={"pool"}, leased_ids=leased, count_max=9
    ) == [free.job_id]


def test_jobs_that_cannot_emit_come_last() -> None:
    dead = [job(n, n)._replace(pool="dead") for n in range(1, 301)]
    slow = [job(n, n)._replace(pool="slow") for n in range(301, 601)]
    busy = job(900, 900, outstanding=WINDOW - 1, is_leased=True)
    allowed = {slow[7].tenant_pool: 1, busy.tenant_pool: WINDOW}
    loads = [*dead, *slow, busy]
    selected = select_jobs(
        loads, allowed, available={"pool", "slow"}, leased_ids={busy.job_id}, count_max=256
    )
    assert selected[:2] == [slow[7].job_id, busy.job_id]
    assert not {load.job_id for load in dead} & set(selected)
