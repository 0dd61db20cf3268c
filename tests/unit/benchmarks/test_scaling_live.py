"""Goal: the policies of the stack are valid, and lost and repeated items are seen."""

from pathlib import Path

from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.pool_policy import PolicyMode
from benchmarks.measurements.scaling_live import REPLICAS_MAX, count_output, policy_text
from benchmarks.scaling.live_run import POOL, LiveTurn


def test_the_policies_of_a_turn_are_valid(tmp_path: Path) -> None:
    for mode in (PolicyMode.ACTIVE, PolicyMode.PAUSED):
        path = tmp_path / f"{mode}.toml"
        path.write_text(policy_text(mode))
        policy = PolicyFile(path).policies.policy_of(POOL)
        assert (policy.mode, policy.replicas_min) == (mode, 0)
        assert policy.replicas_max == REPLICAS_MAX


def test_lines_of_an_output_are_counted_by_custom_id(tmp_path: Path) -> None:
    path = tmp_path / "output.jsonl"
    path.write_text('{"custom_id":"r-0"}\n{"custom_id":"r-1","x":1}\n{"custom_id":"r-0"}\n')
    assert count_output(path) == {"r-0": 2, "r-1": 1}


def test_a_turn_sums_replica_seconds_and_finds_streams_of_another_length() -> None:
    turn = LiveTurn(samples=[(0.0, 0, 0), (1.0, 2, 3), (3.0, 3, 3), (4.0, 0, 0)])
    turn.event_counts.update({4: 10, 5: 1, 3: 2})
    assert (turn.replica_s, turn.peak, turn.flips, turn.odd_streams) == (7.0, 3, 1, 3)
