"""Goal: tenants get their shares of a pool whichever batchers their items lie on."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import pytest

from batcher.policy.service_exchange import (
    FORGET_S,
    SILENCE_S_MAX,
    RemoteService,
    ServiceExchange,
)
from batcher.policy.service_ledger import KEEP_S
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import (
    charge_remote_service,
    pool_shares,
    prune_service,
    report_service,
)
from core.fair_shares import fair_shares
from core.tenant_claims import TenantClaim
from tests.unit.batcher.builders import buffered, job_ref
from topics.records.records import ServiceReport, TenantService

ONE, TWO = UUID(int=1), UUID(int=2)
STEP_S = 0.2
STEP_ITEMS = 300


def report(name: str, *tenants: TenantService, pool: str = "p") -> ServiceReport:
    return ServiceReport(name, "bulk", {pool: [*tenants]})


def test_service_since_the_report_before_is_charged() -> None:
    exchange = ServiceExchange("a", "bulk")
    assert exchange.apply(report("b", TenantService(ONE, 100.0, 5)), now_s=0) == []
    newer = report("b", TenantService(ONE, 130.0, 0), TenantService(TWO, 7.0, 0))
    assert exchange.apply(newer, now_s=1) == [RemoteService("p", ONE, 30.0)]
    assert exchange.apply(newer, now_s=1) == []
    assert exchange.apply(report("b"), now_s=2) == []
    returned = report("b", TenantService(ONE, 135.0, 5), TenantService(TWO, 9.0, 1))
    found = exchange.apply(returned, now_s=3)
    assert found == [RemoteService("p", ONE, 5.0), RemoteService("p", TWO, 2.0)]
    forgotten = report("b", TenantService(ONE, 4.0, 5))
    assert exchange.apply(forgotten, now_s=4) == [RemoteService("p", ONE, 4.0)]


def test_a_report_after_a_silence_charges_nothing() -> None:
    exchange = ServiceExchange("a", "bulk")
    exchange.apply(report("b", TenantService(ONE, 100.0, 5)), now_s=0)
    exchange.apply(report("b"), now_s=1)
    late_s = 1 + SILENCE_S_MAX + 0.1
    assert exchange.apply(report("b", TenantService(ONE, 1e6, 5)), now_s=late_s) == []
    newer = report("b", TenantService(ONE, 1e6 + 3, 5))
    assert exchange.apply(newer, now_s=late_s + 1) == [RemoteService("p", ONE, 3.0)]


def test_own_reports_and_those_of_the_other_class_are_ignored() -> None:
    exchange = ServiceExchange("a", "bulk")
    for served in (1.0, 9.0):
        assert exchange.apply(report("a", TenantService(ONE, served, 5)), now_s=0) == []
        other = ServiceReport("b", "interactive", {"p": [TenantService(ONE, served, 5)]})
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
    assert set(exchange._others) == {"c"}
    exchange.apply(report("c", TenantService(TWO, 5.0, 10)), now_s=FORGET_S + 2)
    exchange.apply(report("c"), now_s=2 * FORGET_S + 3)
    assert exchange._others["c"].served == {}


class VirtualBatcher:
    """The queues of one batcher, which intake refills, and its exchange with others."""

    def __init__(self, name: str, tenants: Sequence[int], claims: Sequence[TenantClaim]) -> None:
        self.name, self.tenants, self.claims = name, tenants, claims
        self.queues = Queues(items_max=10**6, bytes_max=2**40)
        self.exchange = ServiceExchange(name, "bulk")
        self.emitted: Counter[int] = Counter()

    def refill(self, tenants: Sequence[int]) -> None:
        """Let 200 items of each tenant wait."""
        waiting = self.queues.waiting_by_tenant().get("p", {})
        for tenant in set(self.tenants) & set(tenants):
            missing = 200 - waiting.get(UUID(int=tenant), 0)
            if missing > 0:
                first = self.emitted[tenant]
                job = job_ref(tenant, pool="p", **self.claims[tenant]._asdict())
                self.queues.add(buffered(job, range(first, first + missing)), now_s=0.0)
                self.emitted[tenant] += missing

    def dispatch(self, count: int, done: Counter[int]) -> None:
        pool = self.queues.pools.get("p")
        while count > 0 and pool is not None and pool.item_count:
            (queue,) = pool.batch_keys.values()
            chunks = self.queues.pop_batch(
                queue, item_count_max=min(10, count), token_count_max=10**9, turn_items_max=5
            )
            for chunk in chunks:
                count -= len(chunk.items)
                done[chunk.job.tenant_id.int] += len(chunk.items)

    def report(self, now_s: float) -> ServiceReport:
        has_others = self.exchange.has_others(now_s=now_s)
        prune_service(self.queues, now_s=now_s)
        pools = report_service(self.queues) if has_others else {}
        return ServiceReport(self.name, "bulk", pools)

    def share(self, now_s: float) -> float:
        return pool_shares(self.queues, self.exchange, now_s=now_s).get("p", 0.0)


class VirtualPool:
    """Batchers that share a replica, in virtual time."""

    def __init__(self, layout: dict[str, list[int]], weights: Sequence[int | TenantClaim]) -> None:
        claims = [TenantClaim(one) if isinstance(one, int) else one for one in weights]
        self.batchers = [VirtualBatcher(name, found, claims) for name, found in layout.items()]
        self.now_s = 0.0

    def run(
        self, steps: int, tenants: Sequence[int], *, paused: str = "", lost: str = ""
    ) -> Counter[int]:
        """Return how many items of each tenant ran; a `paused` batcher does nothing.

        No batcher reads the reports of a `lost` one.
        """
        done: Counter[int] = Counter()
        for _ in range(steps):
            self.now_s += STEP_S
            live = [one for one in self.batchers if one.name != paused]
            for one in live:
                one.refill(tenants)
            reports = [one.report(self.now_s) for one in live if one.name != lost]
            for one in live:
                for found in reports:
                    services = one.exchange.apply(found, now_s=self.now_s)
                    charge_remote_service(one.queues, services)
            weights = {one.name: max(1, round(1000 * one.share(self.now_s))) for one in live}
            needs = {one.name: one.queues.waiting().get("p", 0) for one in live}
            grants = fair_shares(needs, STEP_ITEMS, weights)
            for one in live:
                one.dispatch(grants[one.name], done)
        return done


LAYOUT = {"a": [0, 1, 2, 3], "b": [0, 4], "c": [0, 4, 5]}
TENANTS = range(6)


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1, 1), (1, 2, 3, 4, 1, 2)])
def test_tenants_get_their_shares_whatever_batchers_they_lie_on(weights: Sequence[int]) -> None:
    pool = VirtualPool(LAYOUT, weights)
    pool.run(25, TENANTS)
    done = pool.run(100, TENANTS)
    gained = [done[tenant] / weights[tenant] for tenant in TENANTS]
    assert max(gained) / min(gained) < 1.05


@pytest.mark.parametrize("layout", [LAYOUT, {"a": [0, 1, 2], "b": [3, 4, 5]}])
def test_a_reserved_share_and_a_class_hold_over_all_batchers(layout: dict[str, list[int]]) -> None:
    claims = [TenantClaim(1, 0.4), *[TenantClaim(1)] * 4, TenantClaim(1, 0.0, 2)]
    pool = VirtualPool(layout, claims)
    pool.run(25, TENANTS)
    done = pool.run(200, TENANTS)
    total = done.total()
    assert done[0] >= 0.39 * total
    assert 0.03 * total <= done[5] <= 0.08 * total
    normal = [done[tenant] for tenant in (1, 2, 3, 4)]
    assert max(normal) / min(normal) < 1.5


@pytest.mark.parametrize("how", ["paused", "lost"])
def test_a_batcher_that_was_silent_charges_nothing_twice(how: str) -> None:
    pool = VirtualPool({"a": [0, 1], "b": [0, 2]}, (1, 1, 1))
    pool.run(500, range(3))
    pool.run(50, range(3), paused="b" if how == "paused" else "", lost="a" if how == "lost" else "")
    done = pool.run(50, range(3))
    assert max(done.values()) / min(done.values()) < 1.3


def test_a_tenant_that_leaves_and_returns_gets_its_share() -> None:
    pool = VirtualPool({"a": [0, 1], "b": [0, 2]}, (1, 1, 1))
    pool.run(100, range(3))
    for seconds in (1, 2 * KEEP_S):
        pool.run(int(seconds / STEP_S), [1, 2])
        done = pool.run(50, range(3))
        assert max(done.values()) / min(done.values()) < 1.3
