"""Goal: an explanation says why, by the values of the decision alone."""

from typing import get_args

from msgspec.structs import replace

from autoscaler.policy.explanation import REASONS, explanation
from autoscaler.policy.role_need import (
    Role,
    RoleProcess,
    RoleRules,
    RoleSignals,
    decide_role,
    role_key,
)
from autoscaler.policy.scaling_decision import Reason
from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.scaling_step import decide
from autoscaler.policy.signals import PoolSignals, ReplicaState
from tests.support.scaling import (
    COLD_START_S,
    NOW_S,
    arrivals,
    bucket,
    gpu_type,
    replica,
    rules_of,
    warm,
)


def worked_7() -> PoolSignals:
    """The example of docs/autoscaling.md."""
    return PoolSignals(
        arrivals=arrivals(2400.0, variance_per_s=1e7),
        online_backlog_tokens=8_000,
        bulk=(bucket(7_200_000, 3600 + COLD_START_S),),
        replicas=(*warm(2), replica(9, ReplicaState.ASLEEP)),
    )


def test_each_reason_has_a_clause() -> None:
    assert set(REASONS) == set(get_args(Reason))


def test_a_7_is_explained_term_by_term() -> None:
    rules = rules_of(burst_factor=1.0, warm_pool=1)
    decision, _ = decide(rules, worked_7(), first_history(NOW_S, 2), NOW_S)
    text = "\n".join(explanation("chat", decision))

    assert text.startswith("chat is to have 7 replicas: the need decided.")
    assert (
        "  online       3.00  2,400 tokens/s arrive / (0.8 × 1,000 tokens/s of a replica)" in text
    )
    assert "  waiting      0.80  8,000 tokens wait / (1,000/s × 10 s)" in text
    assert (
        "  bulk         2.00  7,200,000 tokens of jobs, the first due at 2027-01-15 09:01:30"
        in text
    )
    assert "  burst        0.50  10,000 tokens above the mean in 10 s / (1,000/s × 20 s)" in text
    assert "  sum          6.30  rounded up: 7" in text
    assert "Bounds: 0 to 50." in text
    assert "Woken from the warm pool: 1." in text
    assert "Added: 4 × l4, on demand, 1.00 per hour each." in text
    assert "Added: 1 × l4, on demand, for the warm pool, 1.00 per hour each." in text


def test_the_burst_of_an_older_decision_is_explained_as_it_was_computed() -> None:
    decision, _ = decide(rules_of(), worked_7(), first_history(NOW_S, 2), NOW_S)
    inputs = replace(decision.need.inputs, burst_tokens=9.0, burst_s=0.0)
    old = replace(decision, need=replace(decision.need, burst=0.5, inputs=inputs))

    text = "\n".join(explanation("chat", old))
    assert "9 tokens above the mean in 90 s / (1,000/s × 10 s)" in text


def test_what_was_not_done_is_said_with_its_reason() -> None:
    rules = rules_of(gpu_types=(gpu_type(quota=4),), max_replicas=6, warm_pool=1)
    decision, _ = decide(rules, worked_7(), first_history(NOW_S, 2), NOW_S)
    text = "\n".join(explanation("chat", decision))

    assert "chat is to have 4 replicas: the quota of its GPU types decided." in text
    assert "Not done: 6 replicas, because the quota of its GPU types holds." in text


def test_stale_inputs_and_an_alert_are_said() -> None:
    signals = replace(worked_7(), age_s={"bulk": 30.0})
    decision, _ = decide(rules_of(), signals, first_history(NOW_S, 2), NOW_S)
    lines = explanation("chat", replace(decision, alert="Something."))

    assert "Older than 3 s, so their terms do not fall: bulk." in lines
    assert lines[-1] == "Alert: Something."


def test_a_role_is_explained_in_processes_and_the_unit_of_its_work() -> None:
    rules = RoleRules(role=Role.RESULTS_WRITER, max_replicas=2, target_per_s=100.0)
    process = RoleProcess(process_id="member-0", work_per_s=50.0)
    signals = RoleSignals(processes=(process,), waiting=2_400.0)
    decision, _ = decide_role(rules, signals, first_history(NOW_S, 1), NOW_S)
    lines = explanation(role_key(Role.RESULTS_WRITER), decision)

    assert lines[0] == "role:results-writer is to have 2 processes: the maximum decided."
    assert lines[3:7] == [
        "  load         0.50  the most of: 50 records/s / 100 records/s of a process, cores in use "
        "/ 0.7",
        "  waiting      2.40  2,400 records wait / (100/s × 10 s)",
        "           the group is 48.0 s behind at its rate",
        "  sum          2.90  rounded up: 3",
    ]
    assert "Not done: 3 processes, because the maximum holds." in lines
    assert lines[-1] == "Added: 1."
    assert not [line for line in lines if "token" in line]
