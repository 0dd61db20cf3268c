"""Goal: backlogged clients are served evenly, and idle time earns no credit."""

from collections import deque
from collections.abc import Mapping, Sequence
from random import Random

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
    client_count=st.integers(2, 6),
    delay=st.integers(0, 10),
    costs=st.lists(
        st.tuples(st.integers(1, COST_MAX), st.integers(1, COST_MAX)), min_size=1, max_size=300
    ),
)
def test_gap_of_wrong_estimates_is_bounded_by_what_is_not_settled(
    client_count: int, delay: int, costs: list[tuple[int, int]]
) -> None:
    """Sheng et al., 4.2: the bound grows by the services whose actual cost is not known yet."""
    counters: VirtualCounters[int] = VirtualCounters()
    used = [0] * client_count
    unsettled: deque[tuple[int, int]] = deque()
    for client in range(client_count):
        counters.activate(client)
    for estimate, cost in costs:
        client = counters.least_served()
        counters.charge(client, estimate)
        used[client] += cost
        unsettled.append((client, cost - estimate))
        if len(unsettled) > delay:
            settled, correction = unsettled.popleft()
            counters.charge_if_known(settled, correction)
        assert max(used) - min(used) <= 2 * (delay + 1) * COST_MAX


@given(
    client_count=st.integers(2, 6),
    interval=st.integers(1, 20),
    steps=st.lists(
        st.tuples(st.integers(1, COST_MAX), st.integers(1, COST_MAX), st.integers(0, 30)),
        min_size=1,
        max_size=300,
    ),
    orders=st.randoms(use_true_random=False),
)
def test_the_gap_is_bounded_over_kills_by_what_was_not_reported(
    client_count: int, interval: int, steps: list[tuple[int, int, int]], orders: Random
) -> None:
    """Each kill adds what was served since the last report, and what was not settled by then."""
    delay = 2
    clients = list(range(client_count))
    counters = started(clients, {})
    used, lost = [0.0] * client_count, 0.0
    unsettled: deque[tuple[int, int]] = deque()
    reported: dict[int, float] = {}
    for number, (estimate, cost, kill) in enumerate(steps):
        client = counters.least_served()
        counters.charge(client, estimate)
        used[client] += cost
        unsettled.append((client, cost - estimate))
        if len(unsettled) > delay:
            settled, correction = unsettled.popleft()
            counters.charge_if_known(settled, correction)
        if number % interval == 0:
            reported = {one: counters.lead(one) for one in clients}
        elif kill == 0:
            lost += 2 * (number % interval + delay) * COST_MAX
            orders.shuffle(clients)
            counters = started(clients, reported)
            unsettled.clear()  # replicas report to the process before: nobody reads it
        assert max(used) - min(used) <= 2 * (delay + 1) * COST_MAX + lost


def started(clients: Sequence[int], leads: Mapping[int, float]) -> VirtualCounters[int]:
    """Return the counters of a process that starts, once all clients have come."""
    counters: VirtualCounters[int] = VirtualCounters()
    for client, lead in leads.items():
        counters.restore(client, lead, has_work=True)
    for client in clients:
        counters.activate(client)
    return counters


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=20), st.integers(1, 19))
def test_a_restored_client_without_work_keeps_its_debt_and_earns_no_credit(
    leads: list[int], idle: int
) -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    for client, lead in enumerate(leads):
        counters.restore(client, lead, has_work=client >= idle)
    for client in range(idle, len(leads)):
        counters.activate(client)
    counters.end_restore()
    for client in range(min(idle, len(leads))):
        others = [counters.counter(c) for c in range(len(leads)) if c in counters]
        counters.activate(client)
        assert counters.counter(client) == max(leads[client], min(others, default=0))


def test_without_settlement_a_tenant_of_long_outputs_gets_several_times_as_much() -> None:
    used = {}
    for settles in (False, True):
        counters: VirtualCounters[str] = VirtualCounters()
        total = used[settles] = {"long": 0, "short": 0}
        for client in total:
            counters.activate(client)
        for _ in range(1000):
            client = counters.least_served()
            cost = 100 if client == "long" else 10
            counters.charge(client, 20)
            total[client] += cost
            if settles:
                counters.charge_if_known(client, cost - 20)
    assert used[False]["long"] > 9 * used[False]["short"]
    assert used[True]["long"] - used[True]["short"] <= 100


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


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["come", "leave", "serve"]),
            st.integers(0, 4),
            st.integers(1, COST_MAX),
        ),
        max_size=300,
    )
)
def test_of_equal_clients_one_that_has_just_come_is_first_and_once(
    steps: list[tuple[str, int, int]],
) -> None:
    counters: VirtualCounters[int] = VirtualCounters()
    came: list[int] = []  # active clients without service since, the oldest first
    passed: dict[int, set[int]] = {}  # who was served at the counter of a client that waits
    for step, client, cost in steps:
        if step == "come" and client not in counters:
            counters.activate(client)
            came.append(client)
            passed[client] = set()
        elif step == "leave" and client in counters:
            counters.deactivate(client)
            del passed[client]
            came = [one for one in came if one != client]
        elif step == "serve" and passed:
            served = counters.least_served()
            level = counters.counter(served)
            equals = [one for one in passed if counters.counter(one) == level]
            first = next((one for one in came if one in equals), None)
            assert first is None or served == first
            for one in equals:
                if one != served:
                    assert served not in passed[one]
                    passed[one].add(served)
            counters.charge(served, cost)
            came = [one for one in came if one != served]
            passed[served] = set()


def test_a_client_that_comes_waits_for_no_turn_of_one_that_is_served_all_the_time() -> None:
    counters: VirtualCounters[str] = VirtualCounters()
    counters.activate("large")
    for _ in range(3):
        counters.charge("large", 100)
        counters.activate("small")
        assert counters.least_served() == "small"
        assert counters.least_served_of(("large", "small")) == "small"
        counters.charge("small", 10)
        counters.deactivate("small")
        counters.activate("small")  # at once: its service before counts
        assert counters.least_served() == "large"
        counters.deactivate("small")
