"""Goal: only a job that stood still for the whole limit is repaired, and not twice in a row."""

from uuid import UUID

from jobs.stalls import StallWatch
from jobs.windows import JobLoad


def load(emitted: int, terminal: int) -> JobLoad:
    return JobLoad(UUID(int=1), UUID(int=2), "small", "pool", 1000, emitted, terminal)


def test_a_job_is_stalled_after_the_limit_without_change() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    assert watch.stalled(still, 0) == []
    assert watch.stalled(still, 59) == []
    assert watch.stalled(still, 60) == still


def test_a_row_or_an_emission_starts_the_clock_again() -> None:
    watch = StallWatch(limit_s=60)
    watch.stalled([load(10, 5)], 0)
    assert watch.stalled([load(10, 6)], 59) == []
    assert watch.stalled([load(20, 6)], 118) == []
    assert watch.stalled([load(20, 6)], 177) == []
    assert watch.stalled([load(20, 6)], 178) == [load(20, 6)]


def test_a_job_with_nothing_outstanding_waits_and_does_not_stall() -> None:
    watch = StallWatch(limit_s=60)
    watch.stalled([load(10, 10)], 0)
    assert watch.stalled([load(10, 10)], 600) == []


def test_a_repaired_job_and_one_seen_again_get_their_full_time() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    watch.stalled(still, 0)
    watch.restart(UUID(int=1))
    assert watch.stalled(still, 60) == []
    watch.stalled([], 61)
    assert watch.stalled(still, 120) == []
