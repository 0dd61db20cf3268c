"""Goal: a pool has no replica only once the topic has been read for long enough to know."""

import pytest

from jobs.estimates.pool_rates import PoolRates, PoolState
from tests.support.capacity_records import capacity_record
from topics.records.codec import decode
from topics.records.records import Capacity


def report(items_per_s: float = 100.0, job_class: str = "bulk", replica: str = "r1") -> Capacity:
    record = capacity_record(replica, items_per_s, job_class=job_class)
    return decode(Capacity, record.value, record.headers)


def test_a_pool_has_no_replica_after_seconds_without_a_record() -> None:
    rates = PoolRates()
    assert rates.state("pool-small", 0.0).has_replica
    rates.add_sample([], now_s=0.0)
    assert rates.state("pool-small", 0.0).has_replica
    rates.add_sample([report(job_class="interactive")], now_s=5.0)
    assert not rates.state("pool-small", 5.0).has_replica


def test_nothing_is_known_of_a_pool_a_minute_after_the_last_sample() -> None:
    rates = PoolRates()
    for second in range(6):
        rates.add_sample([report()], now_s=float(second))
    assert rates.state("pool-small", 64.9).rate is not None
    assert not rates.state("pool-other", 64.9).has_replica
    for pool in ("pool-small", "pool-other"):
        assert rates.state(pool, 65.0) == PoolState(has_replica=True, rate=None)
    rates.add_sample([], now_s=70.0)
    assert rates.state("pool-small", 70.0).has_replica  # not read for long enough since


def test_the_rate_of_a_pool_is_that_of_all_its_replicas() -> None:
    rates = PoolRates()
    assert rates.is_due(0.0)
    rates.add_sample([report(100.0), report(50.0, replica="r2")], now_s=0.0)
    assert not rates.is_due(0.5)
    rate = rates.state("pool-small", 0.0).rate
    assert rate is not None
    assert rate.work_per_s == pytest.approx(150.0)
    assert rate.concurrency == pytest.approx(8.0)


def test_a_cold_pool_has_no_rate() -> None:
    rates = PoolRates()
    rates.add_sample([report(0.0)], now_s=0.0)
    assert rates.state("pool-small", 0.0).has_replica
    assert rates.state("pool-small", 0.0).rate is None
