"""Goal: tenants get their shares of a pool whichever batchers their items lie on."""

import random
from collections import Counter, defaultdict
from uuid import UUID

import pytest

from batcher.policy.fairness import VirtualCounters
from batcher.policy.service_exchange import (
    FORGET_S,
    SILENCE_S_MAX,
    ServedElsewhere,
    ServiceExchange,
)
from core.fair_shares import fair_shares
from topics.records.records import ServiceReport, TenantService

ONE, TWO, THREE = UUID(int=1), UUID(int=2), UUID(int=3)


def report(name: str, *tenants: TenantService, pool: str = "p") -> ServiceReport:
    return ServiceReport(name, "bulk", {pool: [*tenants]})


def test_service_since_the_report_before_is_charged() -> None:
    exchange = ServiceExchange("a", "bulk")
    assert exchange.apply(report("b", TenantService(ONE, 100.0, 5)), now_s=0) == []
    newer = report("b", TenantService(ONE, 130.0, 5), TenantService(TWO, 7.0, 0))
    assert exchange.apply(newer, now_s=1) == [
        ServedElsewhere("p", ONE, 30.0),
        ServedElsewhere("p", TWO, 7.0),
    ]
    assert exchange.apply(newer, now_s=1) == []
    assert exchange.apply(report("b"), now_s=2) == []
    returned = report("b", TenantService(ONE, 4.0, 5))
    assert exchange.apply(returned, now_s=3) == [ServedElsewhere("p", ONE, 4.0)]


def test_own_reports_and_those_of_the_other_class_are_ignored() -> None:
    exchange = ServiceExchange("a", "bulk")
    for _ in range(2):
        assert exchange.apply(report("a", TenantService(ONE, 9.0, 5)), now_s=0) == []
        other = ServiceReport("b", "interactive", {"p": [TenantService(ONE, 9.0, 5)]})
        assert exchange.apply(other, now_s=0) == []
    assert not exchange.has_others(now_s=0)


def test_a_share_divides_the_weight_of_a_tenant_between_batchers() -> None:
    exchange = ServiceExchange("a", "bulk")
    waiting, weights = {ONE: 30, TWO: 10}, {ONE: 1, TWO: 4}
    assert exchange.share("p", waiting, weights, now_s=0) == 5
    exchange.apply(report("b", TenantService(TWO, 0.0, 30)), now_s=0)
    assert exchange.share("p", waiting, weights, now_s=0) == 2
    assert exchange.share("other", waiting, weights, now_s=0) == 5
    assert exchange.share("p", {}, {}, now_s=0) == 0


def test_nothing_waits_at_a_silent_batcher_and_one_silent_for_long_is_forgotten() -> None:
    exchange = ServiceExchange("a", "bulk")
    exchange.apply(report("b", TenantService(ONE, 5.0, 10)), now_s=0)
    assert exchange.share("p", {ONE: 10}, {ONE: 1}, now_s=SILENCE_S_MAX) == 0.5
    assert exchange.has_others(now_s=SILENCE_S_MAX)
    assert exchange.share("p", {ONE: 10}, {ONE: 1}, now_s=SILENCE_S_MAX + 0.1) == 1
    assert not exchange.has_others(now_s=SILENCE_S_MAX + 0.1)
    exchange.apply(report("c"), now_s=FORGET_S + 1)
    assert exchange.apply(report("b", TenantService(ONE, 9.0, 10)), now_s=FORGET_S + 2) == []


class SimulatedBatcher:
    """Counters and backlogs of one batcher; every tenant that lies here has items for ever."""

    def __init__(self, name: str, tenants: list[int], weights: dict[UUID, int]) -> None:
        self.name, self.weights = name, weights
        self.tenants = [UUID(int=number) for number in tenants]
        self.exchange = ServiceExchange(name, "bulk")
        self.counters: VirtualCounters[UUID] = VirtualCounters()
        self.served: defaultdict[UUID, float] = defaultdict(float)
        for tenant in self.tenants:
            self.counters.activate(tenant)

    def serve(self, count: int, done: Counter[UUID], rng: random.Random) -> None:
        for _ in range(count):
            tenant, cost = self.counters.least_served(), rng.randint(1, 20)
            self.counters.charge(tenant, cost / self.weights[tenant])
            self.served[tenant] += cost / self.weights[tenant]
            done[tenant] += cost

    def report(self) -> ServiceReport:
        tenants = [TenantService(one, self.served[one], 100) for one in self.tenants]
        return ServiceReport(self.name, "bulk", {"p": tenants})

    def share(self, now_s: float) -> float:
        waiting = dict.fromkeys(self.tenants, 100)
        return self.exchange.share("p", waiting, self.weights, now_s=now_s)


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1, 1), (1, 2, 3, 4, 1, 2)])
def test_tenants_get_equal_service_whatever_batchers_they_lie_on(weights: tuple[int, ...]) -> None:
    by_tenant = {UUID(int=number): weight for number, weight in enumerate(weights)}
    layout = {"a": [0, 1, 2, 3], "b": [0, 4], "c": [0, 4, 5]}
    batchers = [SimulatedBatcher(name, found, by_tenant) for name, found in layout.items()]
    rng, done, before = random.Random(7), Counter[UUID](), Counter[UUID]()
    for step in range(120):
        now_s = 0.2 * step
        reports = [one.report() for one in batchers]
        for one in batchers:
            for other in reports:
                for _, tenant, service in one.exchange.apply(other, now_s=now_s):
                    one.counters.charge_if_known(tenant, service)
        weights_of = {one.name: round(1000 * one.share(now_s)) for one in batchers}
        grants = fair_shares(dict.fromkeys(layout, 600), 600, weights_of)
        for one in batchers:
            one.serve(grants[one.name], done, rng)
        if step == 20:
            before = done.copy()
    gained = [(done[one] - before[one]) / weight for one, weight in by_tenant.items()]
    assert max(gained) / min(gained) < 1.05
