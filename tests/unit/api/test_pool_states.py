"""Goal: the capacity of a pool is the sum of its replicas' recent reports for online calls."""

from api.online.admit.admission import SILENCE_S_MAX, ExecutionTimes, PoolStates
from jobs.expansion.windows import PoolCapacity
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity


def record(
    replica: str, *, job_class: str = "interactive", available: bool = True
) -> ReceivedRecord:
    capacity = Capacity(
        replica_id=replica,
        epoch=1,
        pool="p",
        job_class=job_class,
        partitions=[0],
        granted={},
        items_per_s=10.0,
        concurrency=4,
        available=available,
    )
    key = f"{replica}:{job_class}".encode()
    return ReceivedRecord("capacity", 0, 0, key, kind_headers(Capacity), encode(capacity), 0)


def test_capacity_is_the_sum_of_the_newest_reports() -> None:
    pools = PoolStates(since_s=0.0)
    pools.apply_records([record("a"), record("b"), record("a")], now_s=1.0)
    assert pools.find("p") == PoolCapacity(20.0, 8)

    pools.apply_records([record("b", available=False)], now_s=1.5)
    assert pools.find("p") == PoolCapacity(10.0, 4)


def test_bulk_capacity_is_ignored() -> None:
    pools = PoolStates(since_s=0.0)
    pools.apply_records([record("a", job_class="bulk")], now_s=1.0)
    assert pools.find("p") is None


def test_silent_replicas_are_dropped_once_warm() -> None:
    pools = PoolStates(since_s=0.0)
    assert not pools.is_warm(now_s=1.0)
    pools.apply_records([record("a")], now_s=1.0)
    pools.apply_records([], now_s=1.1 + SILENCE_S_MAX)

    assert pools.find("p") is None
    assert pools.is_warm(now_s=1.1 + SILENCE_S_MAX)


def test_any_report_counts_as_seen() -> None:
    pools = PoolStates(since_s=0.5)
    assert pools.last_seen_s("p") == 0.5
    pools.apply_records([record("a", job_class="bulk", available=False)], now_s=7.0)
    pools.apply_records([], now_s=20.0)

    assert pools.last_seen_s("p") == 7.0
    assert pools.last_seen_s("other") == 0.5


def test_execution_times_are_a_moving_average() -> None:
    times = ExecutionTimes()
    assert times.seconds("p") == 0
    times.add("p", 1.0)
    times.add("p", 2.0)

    assert times.seconds("p") == 1.1
    assert times.seconds("other") == 0
