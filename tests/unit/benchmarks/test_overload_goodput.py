"""Goal: a job counts if all of its items succeeded within its target; offered work is the load."""

import pytest

from benchmarks.data.input_files import SEED
from benchmarks.measurements.overload_goodput import (
    FILES,
    GPU,
    JOB_ITEMS,
    LOAD,
    TARGETS_S,
    Ended,
    OfferedJob,
    draw_job,
    offered_jobs,
)
from benchmarks.stacks.scheduling_stack import LastRow


@pytest.mark.parametrize(
    ("last", "is_in_time"),
    [
        (LastRow(JOB_ITEMS, TARGETS_S[1] - 0.1), True),
        (LastRow(JOB_ITEMS, TARGETS_S[1] + 0.1), False),
        (LastRow(JOB_ITEMS - 1, 1.0), False),
        (None, False),
    ],
)
def test_a_job_is_in_time_with_all_of_its_items(last: LastRow | None, is_in_time: bool) -> None:
    assert Ended(OfferedJob(0.0, 0, 1), last, 1.0).is_in_time == is_in_time


def test_offered_work_is_the_load_of_the_engine() -> None:
    lengths = [draw_job(seed=SEED + number) for number in range(FILES)]
    jobs = offered_jobs(4_000, lengths)
    work_s = sum(GPU.seconds(*one) for job in jobs for one in lengths[job.file])
    assert work_s / jobs[-1].at_s == pytest.approx(LOAD, rel=0.1)
    assert {job.slo for job in jobs} == {0, 1, 2}
    assert jobs == offered_jobs(4_000, lengths)
