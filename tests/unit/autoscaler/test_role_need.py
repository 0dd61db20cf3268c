"""Goal: roles have as many processes as their rate and lag need, within partitions and bounds."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from autoscaler.policies.policy_reader import InvalidPoliciesError, read_policies
from autoscaler.policies.policy_rules import role_rules_of
from autoscaler.policy.role_need import (
    BUSY_MAX,
    LOOP_LAG_MAX_S,
    ROLE_PARTITIONS,
    Role,
    RoleProcess,
    RoleRules,
    RoleSignals,
    check_role_rules,
    decide_role,
    role_need,
)
from autoscaler.policy.scaling_history import PoolHistory, first_history
from autoscaler.policy.scaling_rules import InvalidScalingRulesError
from autoscaler.policy.signals import InvalidSignalError
from tests.support.scaling import NOW_S
from topics.records.catalogue import REQUESTS_BULK, RESULTS

TARGET = 100.0
AMOUNTS = st.floats(0, 1e7)


def rules_of(role: Role = Role.INTAKE, **fields: Any) -> RoleRules:
    given_fields: dict[str, Any] = {"max_replicas": 40, "target_per_s": TARGET} | fields
    return RoleRules(role=role, **given_fields)


def signals_of(count: int, per_s: float = 0.0, **fields: Any) -> RoleSignals:
    """Processes that share the work of `per_s`."""
    return RoleSignals(
        processes=tuple(
            RoleProcess(process_id=f"p{number}", work_per_s=per_s / count, **fields)
            for number in range(count)
        )
    )


def observed(target: int) -> PoolHistory:
    """A history of an hour without load or changes."""
    return replace(first_history(NOW_S - 3600, target), at_s=NOW_S - 1)


def test_the_partitions_are_those_of_the_catalogue() -> None:
    assert {
        Role.BATCHER: REQUESTS_BULK.partition_count,
        Role.RESULTS_WRITER: RESULTS.partition_count,
    } == ROLE_PARTITIONS


def test_the_need_is_rate_and_lag_by_the_target() -> None:
    need = role_need(rules_of(drain_s=5.0), signals_of(2, 250.0, waiting=500.0))

    assert (need.online, need.waiting) == (2.5, 2.0)  # 2.5 of work, 4 s of lag in 5 s
    unread = replace(signals_of(2, 250.0), waiting=5_000.0)
    assert role_need(rules_of(drain_s=5.0), unread).waiting == 10.0


def test_a_busy_process_needs_another_whatever_the_target_says() -> None:
    need = role_need(rules_of(), signals_of(2, 1.0, busy=BUSY_MAX))

    assert need.online == pytest.approx(2.0)


def test_late_loops_of_the_api_need_one_process_more_and_no_further_while_it_starts() -> None:
    late = signals_of(2, 1.0, loop_lag_s=2 * LOOP_LAG_MAX_S)
    starting = RoleProcess(process_id="p9", is_starting=True)
    while_starting = replace(late, processes=(*late.processes, starting))

    assert role_need(rules_of(Role.API), late).replicas == 3
    assert role_need(rules_of(Role.API), while_starting).replicas == 3
    assert role_need(rules_of(Role.INTAKE), late).replicas == 1


@given(st.sampled_from(Role), AMOUNTS, AMOUNTS, st.integers(1, 12), st.integers(1, 8))
def test_bounds_and_partitions_hold(
    role: Role, per_s: float, waiting: float, count: int, least: int
) -> None:
    rules = rules_of(role, min_replicas=least)
    decision, _ = decide_role(
        rules, signals_of(count, per_s, waiting=waiting), observed(count), NOW_S
    )

    assert least <= decision.target <= ROLE_PARTITIONS.get(role, 40)
    assert decision.needed <= decision.target or decision.target == decision.bounds.max_replicas


@given(st.sampled_from(Role), AMOUNTS, AMOUNTS, AMOUNTS, st.integers(1, 12))
def test_more_work_never_gives_fewer_processes(
    role: Role, per_s: float, more: float, waiting: float, count: int
) -> None:
    def target(rate: float, backlog: float) -> int:
        signals = signals_of(count, rate, waiting=backlog)
        return decide_role(rules_of(role), signals, observed(count), NOW_S)[0].target

    assert target(per_s + more, waiting) >= target(per_s, 0.0)


def test_up_is_at_once_and_down_slowly() -> None:
    up, history = decide_role(rules_of(), signals_of(1, 800.0), observed(1), NOW_S)
    assert (up.target, up.action) == (8, "up")
    targets = []
    for second in range(1, 700):
        quiet = signals_of(8, 0.0)
        decision, history = decide_role(rules_of(), quiet, history, NOW_S + second)
        targets.append(decision.target)
    assert set(targets[:299]) == {8}
    assert targets[-1] < 8
    assert min(targets) >= 1


def test_a_report_that_is_old_lowers_nothing() -> None:
    old = signals_of(6, 0.0, age_s=60.0)
    decision, _ = decide_role(rules_of(), old, observed(6), NOW_S)

    assert (decision.target, decision.removals) == (6, ())
    previous = role_need(rules_of(), signals_of(6, 900.0))
    assert role_need(rules_of(), old, previous).online == 9.0


def test_a_role_without_any_report_keeps_its_minimum() -> None:
    decision, _ = decide_role(rules_of(min_replicas=2), RoleSignals(), observed(2), NOW_S)

    assert decision.target == 2
    assert decision.need.exact == 0.0


def test_absurd_inputs_and_rules_are_refused() -> None:
    with pytest.raises(InvalidSignalError):
        role_need(rules_of(), signals_of(1, math.nan))
    for bad in (
        rules_of(min_replicas=0),
        rules_of(min_replicas=3, max_replicas=2),
        rules_of(Role.RESULTS_WRITER, min_replicas=9),
        rules_of(target_per_s=0.0),
        rules_of(drain_s=math.inf),
    ):
        with pytest.raises(InvalidScalingRulesError):
            check_role_rules(bad)


def test_an_order_of_an_operator_is_followed_with_absurd_loads() -> None:
    absurd = signals_of(3, math.nan)
    with pytest.raises(InvalidSignalError):
        decide_role(rules_of(), absurd, observed(3), NOW_S)
    for ordered in (1, 5):
        decision, _ = decide_role(rules_of(), absurd, observed(3), NOW_S, ordered=ordered)
        assert (decision.target, decision.reason) == (ordered, "operator")


def test_a_table_of_a_role_gives_its_rules() -> None:
    text = b"""[roles.batcher]
target_per_s = 900
replicas_max = 12
actuator = 'k8s'
[actuators.k8s]
kind = "kubernetes"
"""
    policies = read_policies(text, "scaling.toml")

    assert role_rules_of(policies, Role.BATCHER) == RoleRules(
        role=Role.BATCHER, max_replicas=12, target_per_s=900.0
    )
    assert policies.roles["batcher"].actuator == "k8s"
    assert role_rules_of(policies, Role.API) is None


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("[roles.api]", "[roles.api] target_per_s: The field is required."),
        ("[roles.gpu]", "[roles.gpu]: The roles are api, intake, batcher, results-writer."),
        (
            "[roles.batcher]\nmode = 'observe'\ntarget_per_s = 1\nreplicas_max = 17",
            "[roles.batcher] replicas_max: 17 is above the 16 partitions that batcher reads.",
        ),
        (
            "[roles.api]\nmode = 'observe'\ntarget_per_s = 1\nreplicas_min = 5",
            "[roles.api] replicas_min: 5 is above replicas_max 4.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1\nqueue_s = 5",
            "[roles.api] queue_s: The table of a role has no such field.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1\nactuator = 'x'",
            "[roles.api] actuator: The file has no table actuators.x.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1",
            "[roles.api] actuator: The file has no actuators, and an active role needs one.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1\n[actuators.here]\nkind = 'embedded'",
            "[roles.api] actuator: here is of kind embedded, which runs pools and no roles.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1\nactuator = 'here'\n"
            "[actuators.here]\nkind = 'embedded'\n[actuators.k8s]\nkind = 'kubernetes'\n"
            "[defaults]\nactuator = 'here'",
            "[roles.api] actuator: here is of kind embedded, which runs pools and no roles.",
        ),
        (
            "[roles.api]\ntarget_per_s = 1\n"
            "[actuators.a]\nkind = 'kubernetes'\n[actuators.b]\nkind = 'kubernetes'\n"
            "[defaults]\nactuator = 'a'",
            "[roles.api] actuator: The file has 2 actuators, and an active role names one.",
        ),
    ],
)
def test_what_a_role_cannot_have_is_refused_by_field(table: str, problem: str) -> None:
    with pytest.raises(InvalidPoliciesError) as refused:
        read_policies(table.encode(), "scaling.toml")

    assert refused.value.problems == (f"scaling.toml: {problem}",)
