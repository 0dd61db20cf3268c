"""Goal: items are emitted not before a time, and only while all hours are open."""

import math
from datetime import UTC, datetime
from uuid import UUID

import pytest

from jobs.expansion.job_openings import JobOpenings
from jobs.expansion.load_cache import OpenLoads
from jobs.expansion.load_sums import JobLoad
from jobs.store.job_schedule import Opening, job_opening

NIGHT, DAY = "22:00-06:00 UTC", "08:00-20:00 UTC"
TENANT = UUID(int=1)


def at(hour: float, day: int = 1) -> float:
    return datetime(2026, 7, day, tzinfo=UTC).timestamp() + hour * 3600


def load(number: int, not_before_s: float = 0.0, bulk_hours: str = "") -> JobLoad:
    one = JobLoad(UUID(int=number), TENANT, "pool", 300, 100, 40)
    return one._replace(not_before_s=not_before_s, bulk_hours=bulk_hours)


@pytest.mark.parametrize(
    ("not_before_s", "hours", "expected"),
    [
        (0.0, (), (0.0, math.inf)),
        (at(12), (None, ""), (0.0, math.inf)),
        (at(13), (None,), (at(13), at(13))),
        (0.0, (NIGHT,), (at(22), at(22))),
        (0.0, (DAY,), (0.0, at(20))),
        (at(23), (DAY, None), (at(8, 2), at(8, 2))),
        (0.0, (NIGHT, DAY), (math.inf, at(12, 2))),  # computed again within a day
        (0.0, ("18:00-24:00 UTC", NIGHT), (at(22), at(22))),
        (at(13, 9), (None,), (at(13, 9), at(12, 2))),
        (0.0, ("hours of another release", DAY), (math.inf, at(12, 2))),
    ],
)
def test_opening_at_noon(
    not_before_s: float, hours: tuple[str | None, ...], expected: tuple[float, float]
) -> None:
    assert job_opening(at(12), not_before_s, hours) == Opening(*expected)


def test_hours_that_a_host_cannot_read_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    for hour in range(3):
        assert job_opening(at(hour), 0.0, ("22:00-06:00 Nowhere/Else",)).opens_s == math.inf
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_loads_open_and_close_with_the_clock() -> None:
    openings = JobOpenings(now_s=at(12))
    loads = OpenLoads(openings=openings)
    jobs = [load(1), load(2, at(13)), load(3, bulk_hours=NIGHT), load(4, bulk_hours=DAY)]
    for one in jobs:
        loads.replace(one.job_id, one)

    def emitting(now_s: float) -> set[int]:
        openings.now_s = now_s
        for job_id in openings.pop_due():
            loads.replace(job_id, loads.by_id[job_id])
        return {job_id.int for job_id, one in loads.by_id.items() if one.remaining}

    assert emitting(at(12)) == {1, 4}
    assert loads.sums.by_tenant_pool[TENANT, "pool"].remaining == 400
    assert emitting(at(13)) == {1, 2, 4}
    assert emitting(at(20)) == {1, 2}
    assert emitting(at(22)) == {1, 2, 3}
    assert emitting(at(6, 2)) == {1, 2}
    assert emitting(at(8, 2)) == {1, 2, 4}
    # What was emitted before still counts.
    assert loads.outstanding == 4 * 60


def test_a_row_that_is_read_again_keeps_its_opening_and_one_entry() -> None:
    openings = JobOpenings(now_s=at(12))
    loads = OpenLoads(openings=openings)
    for emitted in range(100, 200):
        one = load(3, bulk_hours=NIGHT)._replace(emitted=emitted)
        loads.replace(one.job_id, one)
    assert loads.by_id[UUID(int=3)].opens_s == at(22)
    assert len(openings._due) == 1
    free = load(3)
    loads.replace(free.job_id, free)
    assert loads.by_id[free.job_id].remaining == 200
