"""Goal: only a job without change for its limit, and with no item on a replica, is stalled."""

from uuid import UUID

import pytest

from jobs.expansion.load_sums import JobLoad
from jobs.recovery.stall_recovery import StallWatch

STALLED_ID = UUID(int=1)


def load(emitted: int, terminal: int, number: int = 1) -> JobLoad:
    return JobLoad(UUID(int=number), UUID(int=2), "pool", 1000, emitted, terminal)


STALLED = load(10, 5)


@pytest.fixture
def watch() -> StallWatch:
    return StallWatch(limit_s=60)


@pytest.mark.parametrize(
    ("job", "rates", "limit_s"),
    [
        (STALLED, {}, 60),
        (STALLED, {"pool": 1e-9}, 3600),  # the limit of a slow pool is bounded
        (load(10, 10), {}, None),  # without outstanding items
    ],
)
def test_a_job_is_stalled_after_the_limit_without_change(
    watch: StallWatch, job: JobLoad, rates: dict[str, float], limit_s: int | None
) -> None:
    assert watch.find_stalled([job], 0, rates) == []
    assert watch.find_stalled([job], (limit_s or 600) - 1, rates) == []
    assert watch.find_stalled([job], limit_s or 6000, rates) == [job] * (limit_s is not None)


def test_a_row_or_an_emission_restarts_the_wait(watch: StallWatch) -> None:
    watch.find_stalled([load(10, 5)], 0)
    assert watch.find_stalled([load(10, 6)], 59) == []
    assert watch.find_stalled([load(20, 6)], 118) == []
    assert watch.find_stalled([load(20, 6)], 177) == []
    assert watch.find_stalled([load(20, 6)], 178) == [load(20, 6)]


def test_a_re_emitted_or_reappeared_job_gets_its_full_time(watch: StallWatch) -> None:
    watch.find_stalled([STALLED], 0)
    watch.restart_wait(STALLED_ID, 1)
    assert watch.find_stalled([STALLED], 60) == []
    watch.find_stalled([], 61)
    assert watch.find_stalled([STALLED], 120) == []


def test_the_limit_covers_the_backlog_of_a_busy_pool(watch: StallWatch) -> None:
    others = [load(100, 0, n) for n in range(2, 12)]
    for now_s in range(0, 200, 10):  # 1,005 items at 10 a second take 100 s
        assert STALLED not in watch.find_stalled([STALLED, *others], now_s, {"pool": 10.0})
    assert STALLED in watch.find_stalled([STALLED, *others], 201, {"pool": 10.0})


def test_items_on_a_live_replica_restart_the_wait(watch: StallWatch) -> None:
    for now_s in range(0, 108_000, 10):
        assert watch.find_stalled([STALLED], now_s, in_flight={STALLED_ID}) == []
    assert watch.find_stalled([STALLED], 108_049) == []
    assert watch.find_stalled([STALLED], 108_050) == [STALLED]


def test_a_joining_replica_restarts_the_wait(watch: StallWatch) -> None:
    for now_s in range(0, 300, 10):  # a new one every 50 s
        assert watch.find_stalled([STALLED], now_s, joined_s={"pool": now_s // 50 * 50.0}) == []
    assert watch.find_stalled([STALLED], 309, joined_s={"pool": 250.0}) == []
    assert watch.find_stalled([STALLED], 310, joined_s={"pool": 250.0}) == [STALLED]


def test_repeatedly_joining_replicas_do_not_hide_a_loss(watch: StallWatch) -> None:
    for now_s in range(0, 660, 10):
        assert watch.find_stalled([STALLED], now_s, joined_s={"pool": float(now_s)}) == []
    assert watch.find_stalled([STALLED], 660, joined_s={"pool": 660.0}) == [STALLED]


def test_a_resumed_job_outside_of_its_hours_does_not_stall(watch: StallWatch) -> None:
    waiting = STALLED._replace(opens_s=1e9, has_void_items=True)
    assert watch.find_stalled([waiting], 0) == []
    assert watch.find_stalled([waiting], 6000) == []
    # Items that were emitted before the hours ended may be lost, as in any job.
    emitted = STALLED._replace(opens_s=1e9)
    assert watch.find_stalled([emitted], 6001) == []
    assert watch.find_stalled([emitted], 6100) == [emitted]
