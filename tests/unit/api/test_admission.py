"""Goal: rate limits, capacities and execution times are what was reported."""

from functools import partial

import pytest

from api.http.errors import ApiError
from api.online.admit.admission import (
    SILENCE_S_MAX,
    ExecutionTimes,
    PoolStates,
    RateLimits,
)
from api.online.call_errors import retry_after_seconds
from api.runtime.token_bucket import TokenBucket
from core.ids import new_uuid
from jobs.expansion.windows import PoolCapacity
from tests.support.capacity_records import capacity_record
from tests.unit.batcher.builders import job_ref
from topics.records.records import LoadedModel


@pytest.mark.parametrize(("seconds", "header"), [(0.0, 1), (1.2, 2), (1e9, 59)])
def test_retry_after_is_within_limits(seconds: float, header: int) -> None:
    assert retry_after_seconds(seconds) == header


record = partial(capacity_record, items_per_s=10.0, pool="p", job_class="interactive")


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


def test_only_a_replica_with_the_version_of_a_call_serves_it() -> None:
    pools = PoolStates(since_s=0.0)
    job = job_ref(pool="p", model_version="a1", base_version="v1")
    assert not pools.serves(job)
    pools.apply_records([record("a", models=[LoadedModel("v2", "warm")])], now_s=1.0)
    assert not pools.serves(job)
    pools.apply_records(
        [record("b", models=[LoadedModel("v1", "warm", adapters_max=1)])], now_s=1.0
    )
    assert pools.serves(job)
    pools.apply_records([record("b", models=[LoadedModel("v1", "warm")])], now_s=1.0)
    assert not pools.serves(job)  # it takes no adapters


def test_a_replica_that_lists_no_versions_serves_no_adapter() -> None:
    pools = PoolStates(since_s=0.0)
    adapter = job_ref(pool="p", model_version="a1", base_version="v1")
    pools.apply_records([record("of an earlier release", models=[])], now_s=1.0)
    assert pools.serves(job_ref(pool="p", model_version="3" * 64))
    assert not pools.serves(adapter)
    pools.apply_records([record("b", models=[LoadedModel("1" * 64, "warm")])], now_s=1.0)
    assert not pools.serves(adapter)
    assert not pools.serves(job_ref(pool="p", model_version="3" * 64))
    assert pools.serves(job_ref(pool="p", model_version="registered without a digest"))


def test_a_replica_that_loads_its_model_is_shown_and_counts_for_nothing() -> None:
    pools = PoolStates(since_s=0.5)
    pools.apply_records(
        [record("a", available=False, models=[LoadedModel("v1", "loading")])], now_s=1.0
    )
    assert len(pools.reports(now_s=1.0)) == 1
    assert (pools.find("p"), pools.last_seen_s("p")) == (None, 0.5)


def test_execution_times_are_a_moving_average() -> None:
    times = ExecutionTimes()
    assert times.seconds("p") == 0
    times.add("p", 1.0)
    times.add("p", 2.0)

    assert times.seconds("p") == 1.1
    assert times.seconds("other") == 0


def test_a_bucket_fills_evenly_up_to_its_size() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    bucket.consume(60, now_s=0.0)

    assert bucket.level(now_s=0.0) == 0
    assert bucket.wait_s(1, now_s=0.0) == pytest.approx(1.0)
    assert bucket.level(now_s=10.0) == pytest.approx(10.0)
    assert bucket.level(now_s=1000.0) == 60


def test_refunds_do_not_exceed_the_size() -> None:
    bucket = TokenBucket(100, now_s=0.0)
    bucket.consume(80, now_s=0.0)
    bucket.consume(-50, now_s=0.0)
    assert bucket.level(now_s=0.0) == 70
    bucket.consume(-500, now_s=0.0)
    assert bucket.level(now_s=0.0) == 100


def test_a_cost_above_the_size_waits_for_a_full_bucket() -> None:
    bucket = TokenBucket(60, now_s=0.0)
    assert bucket.wait_s(1_000_000, now_s=0.0) == 0
    bucket.consume(1_000_000, now_s=0.0)
    assert bucket.wait_s(1, now_s=0.0) > 60


def test_a_refused_call_is_not_charged_and_names_the_limit() -> None:
    limits = RateLimits(requests_per_minute=60, tokens_per_minute=100)
    buckets = limits.of_tenant(new_uuid(), now_s=0.0)
    buckets.admit(100, now_s=0.0)
    with pytest.raises(ApiError) as refused:
        buckets.admit(50, now_s=0.0)

    error = refused.value
    assert (error.status, error.code) == (429, "rate_limit_exceeded")
    assert "tokens" in error.message
    assert error.headers is not None
    assert error.headers["retry-after"] == "30"
    assert error.headers["x-ratelimit-remaining-requests"] == "59"
    buckets.admit(50, now_s=30.0)


def test_tenants_have_own_buckets() -> None:
    limits = RateLimits(requests_per_minute=1, tokens_per_minute=100)
    one, other = new_uuid(), new_uuid()
    limits.of_tenant(one, now_s=0.0).admit(1, now_s=0.0)
    limits.of_tenant(other, now_s=0.0).admit(1, now_s=0.0)
    with pytest.raises(ApiError):
        limits.of_tenant(one, now_s=0.0).admit(1, now_s=0.0)


def test_rate_limit_headers() -> None:
    limits = RateLimits(requests_per_minute=10, tokens_per_minute=60_000)
    buckets = limits.of_tenant(new_uuid(), now_s=0.0)
    for _ in range(10):
        buckets.admit(12, now_s=0.0)
    headers = dict(buckets.headers(now_s=0.0))

    assert headers[b"x-ratelimit-limit-requests"] == b"10"
    assert headers[b"x-ratelimit-remaining-requests"] == b"0"
    assert headers[b"x-ratelimit-reset-requests"] == b"1m0s"
    assert headers[b"x-ratelimit-remaining-tokens"] == b"59880"
    assert headers[b"x-ratelimit-reset-tokens"] == b"120ms"
