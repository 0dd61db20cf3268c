"""Goal: only a job that stood still for the whole limit is repaired, and not twice in a row."""

from uuid import UUID

from jobs.expansion.windows import JobLoad
from jobs.recovery.stall_watch import StallWatch


def load(emitted: int, terminal: int) -> JobLoad:
    return load_of(1, emitted, terminal)


def load_of(number: int, emitted: int, terminal: int) -> JobLoad:
    return JobLoad(UUID(int=number), UUID(int=2), "small", "pool", 1000, emitted, terminal, True)


def test_a_job_is_stalled_after_the_limit_without_change() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    assert watch.find_stalled(still, 0) == []
    assert watch.find_stalled(still, 59) == []
    assert watch.find_stalled(still, 60) == still


def test_a_row_or_an_emission_starts_the_clock_again() -> None:
    watch = StallWatch(limit_s=60)
    watch.find_stalled([load(10, 5)], 0)
    assert watch.find_stalled([load(10, 6)], 59) == []
    assert watch.find_stalled([load(20, 6)], 118) == []
    assert watch.find_stalled([load(20, 6)], 177) == []
    assert watch.find_stalled([load(20, 6)], 178) == [load(20, 6)]


def test_a_job_with_nothing_outstanding_waits_and_does_not_stall() -> None:
    watch = StallWatch(limit_s=60)
    watch.find_stalled([load(10, 10)], 0)
    assert watch.find_stalled([load(10, 10)], 600) == []


def test_a_repaired_job_and_one_seen_again_get_their_full_time() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    watch.find_stalled(still, 0)
    watch.restart_wait(UUID(int=1), 1)
    assert watch.find_stalled(still, 60) == []
    watch.find_stalled([], 61)
    assert watch.find_stalled(still, 120) == []


def test_a_job_may_wait_for_its_turn_in_a_busy_pool() -> None:
    watch = StallWatch(limit_s=60)
    still, others = load(10, 5), [load_of(n, 100, 0) for n in range(2, 12)]
    for now_s in range(0, 200, 10):  # 1,005 items at 10 a second take 100 s
        assert still not in watch.find_stalled([still, *others], now_s, {"pool": 10.0})
    assert still in watch.find_stalled([still, *others], 201, {"pool": 10.0})


def test_however_slow_a_pool_is_a_loss_comes_to_light() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    watch.find_stalled(still, 0, {"pool": 1e-9})
    assert watch.find_stalled(still, 3599, {"pool": 1e-9}) == []
    assert watch.find_stalled(still, 3600, {"pool": 1e-9}) == still


def test_repairs_that_change_nothing_come_ever_later_until_something_does() -> None:
    watch = StallWatch(limit_s=60)
    still, repaired_at = [load(10, 5)], []
    for now_s in range(0, 1000, 10):
        if watch.find_stalled(still, now_s):
            watch.restart_wait(UUID(int=1), now_s)
            repaired_at.append(now_s)
    assert repaired_at == [60, 180, 420, 900]
    watch.find_stalled([load(10, 6)], 1000)
    assert watch.find_stalled([load(10, 6)], 1060) == [load(10, 6)]


def test_a_job_whose_replica_ends_again_and_again_is_not_taken_for_lost() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    for now_s in range(0, 300, 10):  # a new one every 50 s
        assert watch.find_stalled(still, now_s, joined_s={"pool": now_s // 50 * 50.0}) == []
    assert watch.find_stalled(still, 309, joined_s={"pool": 250.0}) == []
    assert watch.find_stalled(still, 310, joined_s={"pool": 250.0}) == still


def test_replicas_that_come_and_go_for_ever_hide_no_loss() -> None:
    watch = StallWatch(limit_s=60)
    still = [load(10, 5)]
    for now_s in range(0, 660, 10):
        assert watch.find_stalled(still, now_s, joined_s={"pool": float(now_s)}) == []
    assert watch.find_stalled(still, 660, joined_s={"pool": 660.0}) == still
