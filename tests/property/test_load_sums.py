"""Goal: sums that follow each change of a load are those of a new count."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.load_sums import JobLoad, LoadSums


@st.composite
def load(draw: st.DrawFn) -> JobLoad:
    total = draw(st.integers(0, 300))
    emitted = draw(st.integers(0, total))
    number = draw(st.integers(0, 5))
    return JobLoad(
        job_id=UUID(int=number),
        tenant_id=UUID(int=number % 2),
        pool=f"pool-{number % 3}",
        total=total,
        emitted=emitted,
        terminal=draw(st.integers(0, emitted)),
        priority=draw(st.sampled_from([0, 5, 9])),
        left_s=draw(st.sampled_from([0.0, 60.0, 86_400.0])),
        item_bytes=draw(st.sampled_from([0, 100, 300_000])),
        has_void_items=draw(st.booleans()),
        created_s=float(number % 2),
    )


@given(history=st.lists(st.tuples(load(), st.booleans()), max_size=30))
def test_sums_after_any_history_are_those_of_the_open_jobs(
    history: list[tuple[JobLoad, bool]],
) -> None:
    sums, open_loads = LoadSums(), dict[UUID, JobLoad]()
    for changed, is_open in history:
        before = open_loads.pop(changed.job_id, None)
        if is_open:
            open_loads[changed.job_id] = changed
        sums.replace(before, changed if is_open else None)
    assert sums == LoadSums.of(open_loads.values())
    for key, tenant in sums.by_tenant_pool.items():
        mine = [job for job in open_loads.values() if job.tenant_pool == key and job.remaining]
        ordered = sorted(mine, key=lambda job: (job.rank, job.created_s, job.job_id))
        assert [job_id for _, (_, job_id) in tenant.in_order()] == [job.job_id for job in ordered]
