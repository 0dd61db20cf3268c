"""Goal: a tenant gets its rate, evenly and no more, and refusals have a retry time."""

import pytest

from api.http.errors import ApiError
from api.online.admit.rate_limits import Charge, RateLimits, TokenBucket
from core.ids import new_uuid


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


def test_an_estimate_above_the_size_blocks_for_at_most_a_minute() -> None:
    limits = RateLimits(requests_per_minute=60, tokens_per_minute=100)
    buckets = limits.of_tenant(new_uuid(), now_s=0.0)
    charge = Charge(buckets, buckets.admit(10_000, now_s=0.0))
    assert buckets.tokens.wait_s(1, now_s=0.0) < 1
    charge.settle(0, now_s=0.0)
    assert buckets.tokens.level(now_s=0.0) == 100

    charge = Charge(buckets, buckets.admit(10_000, now_s=0.0))
    charge.settle(250, now_s=0.0)  # what was used counts in full
    assert buckets.tokens.level(now_s=0.0) == -150


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
