"""Goal: what the webhooks role knows of replicas comes from a log that it can read."""

from jobs.estimates.pool_rates import PoolRates, PoolState
from results.webhooks.events.progress_estimates import CapacityReports
from tests.support.capacity_records import capacity_record
from tests.support.clock import ManualClock


def test_replicas_that_fall_silent_count_as_gone_only_while_the_topic_is_readable() -> None:
    clock, rates, readable = ManualClock(), PoolRates(), [True]
    reports = CapacityReports(rates, clock, lambda: readable[0])

    def poll(seconds: int, *, has_record: bool = False) -> PoolState:
        for _ in range(seconds):
            clock.advance(1.0)
            reports.receive([capacity_record(items_per_s=10.0)] if has_record else [])
        return rates.state("pool-small", clock.monotonic_s())

    assert poll(7, has_record=True).rate is not None
    readable[0] = False
    assert poll(30).rate is not None
    assert poll(31) == PoolState(has_replica=True, rate=None)
    readable[0] = True
    assert poll(3).has_replica
    assert not poll(3).has_replica
