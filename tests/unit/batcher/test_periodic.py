"""Goal: work that no replica may run is neither demanded nor taken for a standstill."""

from typing import Any, cast

from batcher.outbound.demand_publisher import DemandPublisher
from batcher.periodic import PeriodicTasks
from batcher.policy.service_exchange import ServiceExchange
from batcher.queueing.pool_arrivals import PoolArrivals
from tests.unit.batcher.test_dispatcher import Bench
from topics.records.records import DemandTokens, LoadedModel


class FakeDemand:
    """Keeps the newest demand."""

    published_pools: frozenset[str] = frozenset()
    waiting: dict[str, int]
    pools: dict[str, DemandTokens]

    def publish(
        self, waiting: dict[str, int], shares: dict[str, float], pools: dict[str, DemandTokens]
    ) -> None:
        self.waiting, self.pools = waiting, pools


def periodic_of(bench: Bench, demand: FakeDemand) -> PeriodicTasks:
    unused: Any = None
    return PeriodicTasks(
        job_class="bulk",
        queues=bench.queues,
        arrivals=PoolArrivals(),
        ledger=bench.ledger,
        acks=bench.acks,
        record_handler=unused,
        dispatcher=bench.dispatcher,
        maintenance=unused,
        demand=cast(DemandPublisher, demand),
        service=unused,
        exchange=ServiceExchange("b", "bulk"),
        stream=unused,
        dead_letters=unused,
        admin=unused,
        clock=bench.clock,
        unreadable=unused,
    )


def test_items_whose_version_no_replica_has_are_not_demanded() -> None:
    bench, demand = Bench(), FakeDemand()
    periodic = periodic_of(bench, demand)
    bench.items(10, job=1, model_version="v1")
    bench.items(7, job=2, model_version="v2")
    periodic.publish_demand()
    assert demand.waiting == {"p": 17}  # a replica of any version may come
    bench.grant(0, models=[LoadedModel("v1", "warm")])
    periodic.publish_demand()
    assert demand.waiting == {"p": 10}
    bench.grant(0, replica="s", models=[LoadedModel("v2", "warm")])
    periodic.publish_demand()
    assert demand.waiting == {"p": 17}


def test_demand_holds_the_tokens_of_its_pools() -> None:
    bench, demand = Bench(), FakeDemand()
    bench.items(3, job=1)
    periodic_of(bench, demand).publish_demand()
    (pool,) = demand.pools.values()
    assert (pool.prompt_tokens, pool.arrived_items) == (30.0, 0)


def test_credit_for_another_version_is_no_standstill() -> None:
    bench = Bench()
    periodic = periodic_of(bench, FakeDemand())
    bench.items(7, model_version="v2")
    bench.grant(10, models=[LoadedModel("v1", "warm")])
    assert not periodic._has_credit(bench.clock.now_s)
    bench.grant(10, replica="s", models=[LoadedModel("v2", "warm")])
    assert periodic._has_credit(bench.clock.now_s)
