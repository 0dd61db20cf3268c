"""Goal: a call is refused if and only if it could not be served in time or a limit is reached."""

import pytest

from api.online.admit.admission import (
    SILENCE_S_MAX,
    ExecutionTimes,
    OpenCallCounts,
    PoolStates,
    find_refusal,
    predicted_wait_s,
)
from api.online.call_errors import retry_after_seconds
from api.online.settings import OnlineSettings
from jobs.expansion.windows import PoolCapacity
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity

LIMITS = OnlineSettings(open_calls_max=10, open_calls_per_tenant_max=5)
POOL = PoolCapacity(items_per_s=2.0, concurrency=4)


@pytest.mark.parametrize(
    ("load", "status", "code"),
    [
        (OpenCallCounts(total=9, of_tenant=4, of_pool=0), None, None),
        (OpenCallCounts(total=9, of_tenant=5, of_pool=0), 429, "queue_full"),
        (OpenCallCounts(total=10, of_tenant=0, of_pool=0), 503, "queue_full"),
    ],
)
def test_limits_on_open_calls(load: OpenCallCounts, status: int | None, code: str | None) -> None:
    refused = find_refusal(load, LIMITS, POOL, execution_s=1.0, time_left_s=60)

    assert (refused.status if refused else None) == status
    assert (refused.code if refused else None) == code


@pytest.mark.parametrize(
    ("open_calls", "pool", "execution_s", "wait_s"),
    [
        (4, POOL, 4.0, 0.0),  # runs at once
        (6, POOL, 4.0, 1.0),
        (6, POOL, 1.0, 0.5),  # the measured rate is that of little work
        (1000, None, 1.0, 0.0),  # nothing is known
        (1000, POOL, 0.0, 0.0),
        (1000, PoolCapacity(0.0, 0), 1.0, 0.0),
    ],
)
def test_predicted_wait(
    open_calls: int, pool: PoolCapacity | None, execution_s: float, wait_s: float
) -> None:
    assert predicted_wait_s(open_calls, pool, execution_s) == wait_s


def test_a_wait_beyond_the_deadline_is_refused_with_retry_after() -> None:
    load = OpenCallCounts(total=0, of_tenant=0, of_pool=104)
    refused = find_refusal(load, LIMITS, POOL, execution_s=2.0, time_left_s=40)

    assert refused is not None
    assert (refused.status, refused.code) == (503, "queue_full")
    assert refused.headers == {"retry-after": "10"}
    assert find_refusal(load, LIMITS, POOL, execution_s=2.0, time_left_s=50) is None


@pytest.mark.parametrize(("seconds", "header"), [(0.0, 1), (1.2, 2), (1e9, 60)])
def test_retry_after_is_within_limits(seconds: float, header: int) -> None:
    assert retry_after_seconds(seconds) == header


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


def test_silent_replicas_are_dropped_once_warm() -> None:
    pools = PoolStates(since_s=0.0)
    assert not pools.is_warm(now_s=1.0)
    pools.apply_records([record("a")], now_s=1.0)
    pools.apply_records([], now_s=1.1 + SILENCE_S_MAX)

    assert pools.find("p") is None
    assert pools.is_warm(now_s=1.1 + SILENCE_S_MAX)


def test_any_report_counts_as_seen_but_only_online_capacity_counts() -> None:
    pools = PoolStates(since_s=0.5)
    assert pools.last_seen_s("p") == 0.5
    pools.apply_records([record("a", job_class="bulk")], now_s=7.0)
    assert pools.find("p") is None  # capacity for bulk items is not for calls
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
