"""Goal: backlogged clients are served evenly, and idle time earns no credit."""

from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.fairness import VirtualCounters, service_cost

COST_MAX = 500


@given(
    client_count=st.integers(2, 6),
    costs=st.lists(st.integers(1, COST_MAX), min_size=1, max_size=300),
)
def test_gap_between_backlogged_clients_is_bounded_by_one_service(
    client_count: int, costs: list[int]
) -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    served = [0] * client_count
    for client in range(client_count):
        counters.activate(client)
    for cost in costs:
        client = counters.least_served_of(range(client_count))
        counters.charge(client, cost)
        served[client] += cost
        assert max(served) - min(served) <= COST_MAX


@given(
    weights=st.lists(st.integers(1, 8), min_size=2, max_size=6),
    costs=st.lists(st.integers(1, COST_MAX), min_size=1, max_size=300),
)
def test_backlogged_clients_are_served_by_their_weights(
    weights: list[int], costs: list[int]
) -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    served = [0.0] * len(weights)
    for client in range(len(weights)):
        counters.activate(client)
    for cost in costs:
        client = counters.least_served()
        counters.charge(client, service_cost(cost, weights[client]))
        served[client] += cost / weights[client]
        assert max(served) - min(served) <= COST_MAX


@given(
    st.lists(
        st.tuples(st.sampled_from(["come", "go", "serve"]), st.integers(0, 4), st.integers(1, 500)),
        max_size=300,
    )
)
def test_returning_client_is_never_below_active_ones(steps: list[tuple[str, int, int]]) -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    for action, client, cost in steps:
        if action == "come" and client not in counters:
            others = [counters.counter(c) for c in range(5) if c in counters]
            counters.activate(client)
            if others:
                assert counters.counter(client) >= min(others)
        elif action == "go":
            counters.deactivate(client)
        elif action == "serve" and len(counters):
            active = [c for c in range(5) if c in counters]
            counters.charge(counters.least_served_of(active), cost)


def test_leaving_and_returning_cancels_no_debt_and_a_newcomer_has_as_much() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    counters.activate("greedy")
    counters.activate("patient")
    counters.charge("greedy", 1000)
    counters.deactivate("greedy")
    counters.activate("greedy")
    assert counters.least_served_of(("greedy", "patient")) == "patient"
    counters.charge("patient", 900)
    assert counters.least_served_of(("greedy", "patient")) == "patient"
    for client in ("greedy", "patient"):
        counters.deactivate(client)
    for client in ("greedy", "newcomer"):
        counters.activate(client)
    assert counters.counter("newcomer") == counters.counter("greedy") == 1000


def test_inactive_clients_at_the_level_are_forgotten() -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    for client in range(1000):
        counters.activate(client)
        counters.charge(client, 10)
        counters.deactivate(client)
    assert len(counters) == 0
    assert len(counters._inactive) == 0
