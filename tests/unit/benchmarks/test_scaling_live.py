"""Goal: the policies of the stack are valid, and lost and repeated items are seen."""

from dataclasses import replace
from pathlib import Path
from typing import cast

from openai.types import Batch
from openai.types.batch_request_counts import BatchRequestCounts

from autoscaler.policies.policy_file import PolicyFile
from autoscaler.policies.pool_policy import PolicyMode
from benchmarks.measurements.scaling_live import REPLICAS_MAX, _facts, count_output, policy_text
from benchmarks.scaling.live_run import POOL, LiveTurn
from benchmarks.scaling.trace import scaled_trace
from benchmarks.stacks.stack_jobs import JobsClient


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


class OutputClient:
    """A client whose job has this output."""

    def __init__(self, lines: list[str]) -> None:
        self._text = "".join(f'{{"custom_id":"{line}"}}\n' for line in lines)

    def download(self, file_id: str, path: Path) -> Path:
        path.write_text(self._text)
        return path


def test_facts_name_what_was_lost_or_came_twice(tmp_path: Path) -> None:
    trace = replace(scaled_trace(600), job_items=4)
    counts = BatchRequestCounts(completed=4, failed=0, total=4)
    turn = LiveTurn(
        first_waits_s=[0.2, 0.3, 5.0, 0.2],
        lost_calls=1,
        batch=Batch.model_construct(
            id="b", status="completed", output_file_id="f", request_counts=counts
        ),
        job_began_s=170.0,
        job_ended_s=400.0,
        samples=[(0.0, 1, 1), (10.0, 0, 0)],
        zero_s=60.0,
    )
    client = cast("JobsClient", OutputClient(["r-0", "r-1", "r-1", "r-3"]))
    facts = _facts(turn, trace, client, tmp_path / "output")
    assert (facts["lost"], facts["twice"], facts["share"]) == (2, 1, 0.75)
    assert (facts["replica_s"], facts["job_s"], facts["in_time"], facts["zero_s"]) == (
        10,
        230,
        1,
        60,
    )
    turn.job_ended_s = 422.0
    assert _facts(turn, trace, client, tmp_path / "output")["in_time"] == 0
