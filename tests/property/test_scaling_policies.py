"""Goal: policies survive being written and read, and no file has any other end than an error."""

import string
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from autoscaler.actuators.actuator_tables import KubernetesTable
from autoscaler.policies.policies import Policies, bounds_at
from autoscaler.policies.policy_checks import lowest_cost_per_hour
from autoscaler.policies.policy_reader import PROBLEMS_MAX, InvalidPoliciesError, read_policies
from autoscaler.policies.pool_policy import (
    GpuType,
    PolicyMode,
    PoolPolicy,
    RolePolicy,
    ScheduleEntry,
)
from autoscaler.policy.role_need import Role
from tests.support.policy_texts import policies_text

NAMES = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
POOLS = st.builds(lambda name, end: name + end, NAMES, st.sampled_from(["", "-x", "-*", ".*"]))
SECONDS = st.floats(0.01, 1_000_000)
HOURS = st.sampled_from(
    ["22:00-06:00 Europe/Berlin", "Mon-Fri 08:00-18:00 UTC", "Sun 00:00-24:00 Asia/Tokyo"]
)


@st.composite
def curves(draw: st.DrawFn) -> tuple[tuple[int, float], ...]:
    requests = sorted(draw(st.sets(st.integers(1, 1000), min_size=1, max_size=4)))
    rates = st.lists(st.floats(0.1, 1e6), min_size=len(requests), max_size=len(requests))
    return tuple(zip(requests, sorted(draw(rates)), strict=True))


@st.composite
def types_of_gpus(draw: st.DrawFn) -> GpuType:
    cost = draw(st.floats(0.01, 100))
    return GpuType(
        memory_gib=draw(st.floats(1, 200)),
        cost_per_hour=cost,
        throughput=draw(curves()),
        spot_cost_per_hour=cost * draw(st.floats(0.1, 1)),
        quota=draw(st.none() | st.integers(50_000, 60_000)),
    )


@st.composite
def pool_policies(draw: st.DrawFn, names: list[str]) -> PoolPolicy:
    fewest, warm, more = (draw(st.integers(0, 20)) for _ in range(3))
    most = fewest + warm + more
    chosen = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    entries = st.builds(ScheduleEntry, HOURS, st.integers(0, fewest), st.integers(most, most + 9))
    return PoolPolicy(
        mode=draw(st.sampled_from(PolicyMode)),
        replicas_min=fewest,
        replicas_max=most,
        warm_replicas=warm,
        first_token_s=draw(SECONDS),
        queue_s=draw(SECONDS),
        utilization=draw(st.floats(0.05, 1)),
        idle_s=draw(SECONDS),
        schedule=tuple(draw(st.lists(entries, max_size=3))),
        zones=tuple(draw(st.lists(NAMES, unique=True, max_size=3))),
        gpu_types=tuple(chosen),
        gpus_per_replica=draw(st.integers(1, 8)),
        throughput={name: draw(curves()) for name in chosen if draw(st.booleans())},
        spot_share=draw(st.floats(0, 1)) if chosen else 0.0,
        on_demand_fallback=draw(st.booleans()),
        budget_per_hour=draw(st.floats(100_000, 1_000_000)) if chosen else None,
    )


ROLES = st.sampled_from(Role)
ROLE_POLICIES = st.builds(
    RolePolicy,
    target_per_s=st.floats(0.001, 1e12),
    mode=st.sampled_from(PolicyMode),
    replicas_min=st.integers(1, 3),
    replicas_max=st.integers(3, 8),
    drain_s=SECONDS,
    actuator=st.sampled_from([None, "cluster"]),
)


@st.composite
def all_policies(draw: st.DrawFn) -> Policies:
    types = draw(st.dictionaries(NAMES, types_of_gpus(), max_size=3))
    pools = draw(st.dictionaries(POOLS, pool_policies(list(types)), max_size=4))
    return Policies(
        types,
        PoolPolicy(),
        pools,
        roles=draw(st.dictionaries(ROLES, ROLE_POLICIES)),
        actuators={"cluster": KubernetesTable(standby=True)},
    )


@given(all_policies())
def test_policies_are_read_as_they_were_written(policies: Policies) -> None:
    assert read_policies(policies_text(policies).encode(), "scaling.toml") == policies


@given(all_policies(), st.floats(0, 4e9))
def test_bounds_hold_the_warm_pool_at_each_time(policies: Policies, at_s: float) -> None:
    for policy in policies.pools.values():
        bounds = bounds_at(policy, at_s)
        assert 0 <= bounds.replicas_min + policy.warm_replicas <= bounds.replicas_max


@given(all_policies(), NAMES | POOLS)
def test_a_pool_gets_its_name_or_the_longest_pattern(policies: Policies, pool: str) -> None:
    fitting = [
        name
        for name in policies.pools
        if name == pool or (name.endswith("*") and pool.startswith(name[:-1]))
    ]
    found = policies.table_of(pool)

    assert (found is None) == (not fitting)
    if found is not None and found != pool:
        assert pool not in policies.pools
        assert len(found) == max(map(len, fitting))


@given(st.lists(types_of_gpus(), min_size=1, max_size=3), st.integers(0, 50), st.floats(0, 1))
def test_more_replicas_never_cost_less_and_spot_never_more(
    types: list[GpuType], replicas: int, share: float
) -> None:
    spot, on_demand = PoolPolicy(spot_share=share), PoolPolicy()
    cost = lowest_cost_per_hour(replicas, spot, types)

    assert cost <= lowest_cost_per_hour(replicas, on_demand, types) * (1 + 1e-9)
    assert lowest_cost_per_hour(replicas + 1, spot, types) >= cost * (1 - 1e-9)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers(-5, 20_000).map(str)
    | st.sampled_from(
        ["nan", "inf", "-inf", "true", "1e308", "1979-05-27", '""', '"l4"', '"\\u0000"']
    ),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda found: f"[{', '.join(found)}]")
        | inner.map(lambda value: f"{{l4 = {value}}}")
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from([*PoolPolicy.__struct_fields__, *GpuType.__struct_fields__, "x", '"\\n"'])
TABLES = st.sampled_from(["defaults", "gpu_types.l4", "pools.a", 'pools."a*"', "pools", "x"])


@given(st.dictionaries(TABLES, st.dictionaries(FIELDS, VALUES, max_size=4), max_size=4))
def test_a_hostile_file_gives_policies_or_plain_lines(tables: dict[str, dict[str, str]]) -> None:
    lines = [
        line
        for table, fields in sorted(tables.items(), reverse=True)
        for line in (f"[{table}]", *(f"{name} = {value}" for name, value in fields.items()))
    ]
    assert_read_or_refused("\n".join(lines).encode())


@given(st.binary(max_size=200))
def test_any_bytes_give_policies_or_plain_lines(data: bytes) -> None:
    assert_read_or_refused(data)


def assert_read_or_refused(data: bytes) -> None:
    lines = problems_of(data)
    assert lines is None or 0 < len(lines) <= PROBLEMS_MAX
    assert all(line.isprintable() for line in lines or ())
    assert all(line.startswith("scaling.toml: ") for line in lines or ())


def problems_of(data: bytes) -> tuple[str, ...] | None:
    """Return why a file is refused; None: it is valid."""
    try:
        read_policies(data, "scaling.toml")
    except InvalidPoliciesError as error:
        return error.problems
    return None
