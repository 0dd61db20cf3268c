"""Goal: reserved shares, classes and weights hold together; nothing starves, nothing is wasted."""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.fairness import service_cost
from batcher.policy.reserved_service import ReservedService
from batcher.policy.tenant_order import TenantOrder
from core.tenant_claims import RESERVED_TOTAL_MAX, TRICKLE_SHARE, TenantClaim, effective_weights

COST_MAX = 500
COSTS = st.lists(st.integers(1, COST_MAX), min_size=1, max_size=400)
CLASSES = st.integers(0, 2)


@st.composite
def claims_of(draw: st.DrawFn) -> list[TenantClaim]:
    """Claims whose reserved shares add up to the largest sum at most."""
    count = draw(st.integers(2, 7))
    parts = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    total = max(10, sum(parts))
    return [
        TenantClaim(draw(st.integers(1, 8)), RESERVED_TOTAL_MAX * n / total, draw(CLASSES))
        for n in parts
    ]


def serve(order: TenantOrder[int], claims: list[TenantClaim], tenant: int, cost: float) -> None:
    order.charge(tenant, service_cost(cost, claims[tenant].weight), cost)


@given(claims_of(), COSTS)
def test_reserved_shares_and_trickles_are_met_while_all_have_work(
    claims: list[TenantClaim], costs: list[int]
) -> None:
    """The bound is one service of each client that is due a share, as in VTC."""
    order: TenantOrder[int] = TenantOrder()
    for tenant, claim in enumerate(claims):
        order.activate(tenant, claim)
    top = min(claim.tenant_class for claim in claims)
    served: Counter[int] = Counter()
    bound = COST_MAX * (len(claims) + 3)
    for cost in costs:
        tenant = order.first(range(len(claims)))
        serve(order, claims, tenant, cost)
        served[tenant] += cost
        total = served.total()
        for number, claim in enumerate(claims):
            assert served[number] >= claim.reserved * total - bound
        for lower in {claim.tenant_class for claim in claims} - {top}:
            mine = sum(served[n] for n, one in enumerate(claims) if one.tenant_class == lower)
            assert mine >= TRICKLE_SHARE * total - bound


@given(CLASSES, st.lists(st.integers(1, 8), min_size=2, max_size=6), COSTS, st.integers(1, 3))
def test_weights_hold_in_each_class(
    tenant_class: int, weights: list[int], costs: list[int], others: int
) -> None:
    claims = [TenantClaim(weight, 0.0, tenant_class) for weight in weights]
    claims += [TenantClaim(n + 1, 0.0, (tenant_class + 1) % 3) for n in range(others)]
    order: TenantOrder[int] = TenantOrder()
    for tenant, claim in enumerate(claims):
        order.activate(tenant, claim)
    gained = [0.0] * len(claims)
    for cost in costs:
        tenant = order.first(range(len(claims)))
        serve(order, claims, tenant, cost)
        gained[tenant] += cost / claims[tenant].weight
        for mine in (gained[: len(weights)], gained[len(weights) :]):
            assert max(mine) - min(mine) <= COST_MAX


@given(claims_of(), st.lists(st.tuples(st.integers(0, 6), st.integers(1, COST_MAX)), max_size=300))
def test_the_first_of_all_is_the_first_of_each_part_that_has_it(
    claims: list[TenantClaim], steps: list[tuple[int, int]]
) -> None:
    """The order of all tenants, by heaps, is that of a restricted set, by comparison."""
    order: TenantOrder[int] = TenantOrder()
    active: set[int] = set()
    for number, cost in steps:
        tenant = number % len(claims)
        if tenant in active and cost % 3 == 0:
            order.deactivate(tenant)
            active.discard(tenant)
        else:
            order.activate(tenant, claims[cost % len(claims)])  # may change its claim
            active.add(tenant)
        if not active:
            continue
        first = order.first(active)
        assert first in active
        keys = {one: order.first_key({one}) for one in active}
        if len(active) > 1 and order._single is None:
            rest = active - {first}
            assert order.first(rest) in rest
            assert order.first_key(active) <= order.first_key(rest)
        assert order.first_key(active) == min(keys.values())
        serve(order, claims, first, cost)
    for tenant in active:
        order.deactivate(tenant)
    assert len(order) == 0
    assert len(order._due) == 0


@given(COSTS)
def test_a_tenant_that_returns_is_lifted_and_idle_time_earns_no_reserved_service(
    costs: list[int],
) -> None:
    order: TenantOrder[int] = TenantOrder()
    claims = [TenantClaim(1, 0.5), TenantClaim(1), TenantClaim(1)]
    for tenant in (1, 2):
        order.activate(tenant, claims[tenant])
    for cost in costs:
        serve(order, claims, order.first((1, 2)), cost)
    order.activate(0, claims[0])
    assert order.counter(0) >= min(order.counter(1), order.counter(2))
    served: Counter[int] = Counter()
    for _ in range(100):
        tenant = order.first((0, 1, 2))
        serve(order, claims, tenant, 10)
        served[tenant] += 10
    assert 500 - 20 <= served[0] <= 500 + 20


def test_a_higher_class_comes_first_and_a_lower_one_keeps_its_trickle() -> None:
    order: TenantOrder[str] = TenantOrder()
    claims = {"high": TenantClaim(1, 0.0, 0), "low": TenantClaim(1000, 0.0, 2)}
    order.activate("low", claims["low"])
    order.charge("low", 1.0, 1000)
    order.activate("high", claims["high"])
    assert order.first(("high", "low")) == "high"
    served: Counter[str] = Counter()
    for _ in range(1000):
        tenant = order.first(("high", "low"))
        order.charge(tenant, 10.0, 10)
        served[tenant] += 10
    assert served["low"] == pytest.approx(TRICKLE_SHARE * 10_000, abs=20)
    order.deactivate("high")
    assert order.first(("low",)) == "low"  # alone it has everything


def test_service_elsewhere_counts_for_reserved_shares() -> None:
    order: TenantOrder[str] = TenantOrder()
    order.activate("mine", TenantClaim(1, 0.25))
    order.activate("other")
    order.charge("mine", 100.0, 100)
    assert order.first(("mine", "other")) == "other"
    assert not order.charge_if_known("elsewhere", 1000.0, 1000)
    assert order.first(("mine", "other")) == "mine"
    assert order.charge_if_known("mine", 300.0, 300)
    assert order.first(("mine", "other")) == "other"


def test_a_tenant_changes_its_class() -> None:
    order: TenantOrder[int] = TenantOrder()
    order.activate(1)
    order.activate(2)
    order.charge(1, 5.0, 5)
    order.activate(1, TenantClaim(1, 0.0, 0))
    assert order.first((1, 2)) == 1
    assert len(order) == 2
    order.activate(1)
    assert order._single is not None


@pytest.mark.parametrize(
    ("claims", "least"),
    [
        ((TenantClaim(3), TenantClaim(2)), 0.2),
        ((TenantClaim(1, 0.5), TenantClaim(2, 0.5)), 0.5),
        ((TenantClaim(1, 0.4), TenantClaim(1, 0.5)), 0.4),
        ((TenantClaim(1, 0.4), TenantClaim()), 0.1),
    ],
    ids=["weights", "weights with a share", "shares", "a share and none"],
)
def test_claims_by_turns_take_nothing_away(
    claims: tuple[TenantClaim, TenantClaim], least: float
) -> None:
    """Records of two processes may hold an older and a newer claim of a tenant by turns."""
    order: TenantOrder[int] = TenantOrder()
    for tenant in range(1, 10):
        order.activate(tenant)
    served: Counter[int] = Counter()
    for step in range(10_000):
        claim = claims[step % 2]
        order.activate(0, claim)
        tenant = order.first(range(10))
        weight = claim.weight if tenant == 0 else 1
        order.charge(tenant, service_cost(100, weight), 100)
        served[tenant] += 1
    assert served[0] >= least * 10_000 - 20


def test_reserved_shares_above_their_largest_sum_are_reduced_in_proportion() -> None:
    """Records may hold shares of different times: the others still have what is left."""
    order: TenantOrder[int] = TenantOrder()
    claims = [TenantClaim(1, 0.6), TenantClaim(1, 1.0), TenantClaim(1), TenantClaim(1, 0.0, 2)]
    for tenant, claim in enumerate(claims):
        order.activate(tenant, claim)
    served: Counter[int] = Counter()
    for _ in range(20_000):
        tenant = order.first(range(4))
        serve(order, claims, tenant, 10)
        served[tenant] += 1
    due = effective_weights(dict(enumerate(claims)))
    for tenant in range(4):
        assert served[tenant] == pytest.approx(20_000 * due[tenant] / sum(due.values()), abs=20)
    order.activate(1, TenantClaim())
    order.deactivate(0)
    assert order._reserved_total == pytest.approx(0.0)


@pytest.mark.parametrize("lead", [-40.0, 0.0, 30.0])
def test_a_tenant_that_changes_its_class_keeps_its_lead(lead: float) -> None:
    order: TenantOrder[str] = TenantOrder()
    order.activate("mine")
    order.activate("same class")
    order.charge("mine", 50.0 + lead, 50)
    order.charge("same class", 50.0, 50)
    order.activate("high", TenantClaim(1, 0.0, 0))
    order.charge("high", 500.0, 500)
    order.activate("mine", TenantClaim(1, 0.0, 0))
    assert order.counter("mine") == 500.0 + lead
    order.activate("mine")
    assert order.counter("mine") == 50.0 + lead
    order.deactivate("mine")
    order.deactivate("high")
    assert order._single is not None


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=8),
    st.lists(st.integers(1, COST_MAX), max_size=300),
)
def test_shares_of_one_in_all_are_met_within_one_service_of_each(
    parts: list[int], costs: list[int]
) -> None:
    due: ReservedService[int] = ReservedService()
    shares = [n / sum(parts) for n in parts]
    for client, share in enumerate(shares):
        due.activate(client, share)
    served: Counter[int] = Counter()
    for cost in costs:
        behind = due.most_behind()
        client = min(due, key=due.tag) if behind is None else behind
        due.charge(client, cost)
        due.count(cost)
        served[client] += cost
        for number, share in enumerate(shares):
            assert served[number] >= share * served.total() - COST_MAX * (len(parts) + 1)


@dataclass
class Tenant:
    """A simulated tenant: it has work in turns, or always."""

    claim: TenantClaim
    is_steady: bool
    waiting: int = 0
    served: int = 0
    due: float = 0.0  # by its reserved share, while it had work
    waited: list[float] = field(default_factory=list)


@pytest.mark.parametrize("seed", range(3))
def test_minutes_of_traffic(seed: int) -> None:
    """Two simulated minutes: 6,000 batches of tenants, of which two come and go."""
    random = Random(seed)
    tenants = [
        Tenant(TenantClaim(1, 0.25, 1), is_steady=True),
        Tenant(TenantClaim(1, 0.1, 2), is_steady=False),
        Tenant(TenantClaim(2, 0.0, 1), is_steady=True),
        Tenant(TenantClaim(4, 0.0, 1), is_steady=True),
        Tenant(TenantClaim(1, 0.0, 0), is_steady=False),
        Tenant(TenantClaim(1, 0.0, 2), is_steady=True),
    ]
    order: TenantOrder[int] = TenantOrder()
    idle = longest = last = 0
    for step in range(6_000):
        for number, tenant in enumerate(tenants):
            if not tenant.waiting and (not step or random.random() < 0.002):
                tenant.waiting = random.randint(1, 400)
                order.activate(number, tenant.claim)
        active = [number for number, tenant in enumerate(tenants) if tenant.waiting]
        if not active:
            idle += 1
            continue
        number, tokens = order.first(active), random.randint(50, COST_MAX)
        first = tenants[number]
        order.charge(number, service_cost(tokens, first.claim.weight), tokens)
        first.served += tokens
        for one in active:
            tenants[one].due += tokens * tenants[one].claim.reserved
        first.waiting -= 1
        if not first.waiting and first.is_steady:
            first.waiting = random.randint(1, 400)
        elif not first.waiting:
            order.deactivate(number)
        if number == 5:
            longest, last = max(longest, step - last), step
    assert not idle  # steady tenants always have work, and some of it always ran
    for tenant in tenants:
        assert tenant.served >= tenant.due - COST_MAX * (len(tenants) + 3)
    assert abs(tenants[3].served / 4 - tenants[2].served / 2) <= COST_MAX
    assert longest <= 300  # of the lowest class, without a reservation
