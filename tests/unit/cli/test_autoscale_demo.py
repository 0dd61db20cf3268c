"""Goal: the demo of scaling counts, plots and judges what it saw."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import read_policies
from autoscaler.policies.policy_rules import rules_of
from autoscaler.policy.scaling_history import first_history
from autoscaler.policy.scaling_step import decide
from cli.batch.job_progress import JobStatus
from cli.demo.autoscale_demo import JOB, POLICY, POOL, AutoscaleRun
from cli.demo.demo_jobs import FinishedJob
from cli.demo.scaling_plot import svg_plot, text_plot
from cli.demo.scaling_samples import (
    ScalingSample,
    is_at_zero,
    replica_seconds,
    resample,
    sample_of,
)
from core.states import JobState
from tests.support.scaling import NOW_S, signals_of, warm
from tests.support.scaling import rules_of as some_rules
from topics.records.scaling import PoolScaling


def sample(at_s: float, replicas: int = 0, tokens: float = 0.0) -> ScalingSample:
    return ScalingSample(
        at_s=at_s, replicas=replicas, target=replicas, need=float(replicas), waiting_tokens=tokens
    )


SAMPLES = (sample(100), sample(110, 2, 500), sample(130, 1, 50), sample(150))


def record(decision: bytes) -> PoolScaling:
    return PoolScaling(
        pool=POOL, epoch=1, sequence=1, at_s=NOW_S, mode="active", actuator="embedded", target=4,
        kinds=[], removals=[], awake=[], standby=0, start_s=3.0, wake_s=2.0, decision=decision,
    )  # fmt: skip


def test_a_sample_has_the_figures_of_a_decision() -> None:
    decision, _ = decide(some_rules(), signals_of(3000.0, warm(4)), first_history(NOW_S, 4), NOW_S)

    found = sample_of(record(msgspec.json.encode(decision)))

    assert found is not None
    assert (found.at_s, found.replicas, found.target) == (NOW_S, 4, 4)
    assert found.need == pytest.approx(decision.need.exact)


@pytest.mark.parametrize("decision", [b"", b"{}", b"\xff"])
def test_a_record_without_a_decision_is_no_sample(decision: bytes) -> None:
    assert sample_of(record(decision)) is None


def test_replica_seconds_count_each_replica_until_the_next_sample() -> None:
    assert replica_seconds(SAMPLES, 160) == 2 * 20 + 1 * 20
    assert replica_seconds(SAMPLES, 140) == 2 * 20 + 1 * 10
    assert replica_seconds((), 140) == 0


def test_zero_is_told_by_a_sample_after_the_work_alone() -> None:
    assert is_at_zero(SAMPLES, 140)
    assert not is_at_zero(SAMPLES, 151)
    assert not is_at_zero(SAMPLES[:3], 0)
    assert not is_at_zero((replace(SAMPLES[3], target=1),), 0)
    assert not is_at_zero((), 0)


def test_a_part_of_a_plot_has_its_highest_value() -> None:
    values = resample(SAMPLES, lambda one: one.waiting_tokens, 90, 150, 6)

    assert values == [0, 0, 500, 500, 50, 50]


def test_the_plot_of_a_terminal_has_a_line_for_each_series() -> None:
    replicas, need, tokens, axis = text_plot(SAMPLES, 100, 160, width=12)

    assert replicas.partition("│")[2] == "  ████▄▄▄▄  │ max 2"
    assert need.startswith("need")
    assert tokens.endswith("max 500")
    assert axis.endswith("60 s│")


def test_the_plot_of_nothing_is_empty() -> None:
    assert text_plot((), 0, 10, width=5)[0].partition("│")[2] == "     │ max 0"


def test_the_svg_is_a_document_whose_lines_stay_within_it() -> None:
    root = ET.fromstring(svg_plot(SAMPLES, 105, 160, title="<pool> & more"))

    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "<pool> & more"
    assert {"replicas", "need, in replicas", "waiting tokens", "55 s"} <= set(texts)
    paths = [one.get("d", "") for one in root.iter("{http://www.w3.org/2000/svg}path")]
    assert any("H" in path and path.count("V") == 3 for path in paths)
    assert "nan" not in "".join(paths)


def test_the_policy_of_the_demo_lets_its_pool_sleep() -> None:
    policies: Policies = read_policies(POLICY.encode(), "scaling.toml")

    rules = rules_of(policies, POOL)
    assert (rules.min_replicas, rules.max_replicas) == (0, 3)


@pytest.fixture
def run(tmp_path: Path) -> AutoscaleRun:
    """A run in which each of two items and five calls had one answer."""
    files = JOB.files(tmp_path)
    line = b'{"custom_id":"a"}\n{"custom_id":"b"}\n'
    files.requests.write_bytes(line)
    files.results.write_bytes(line)
    files.errors.write_bytes(b"")
    progress = JobStatus(
        state=JobState.COMPLETED, total=2, succeeded=2, failed=0, cancelled=0, expired=0
    )
    job = FinishedJob(progress=progress, files=files, seconds=1, tokens=9, first_result_at_s=0)
    return AutoscaleRun(
        samples=SAMPLES, started_s=100, ended_s=160, wake_s=2.5, calls=5, answered=5, job=job,
        is_at_zero=True,
    )  # fmt: skip


def test_a_run_that_lost_nothing_and_sleeps_passes(run: AutoscaleRun) -> None:
    assert run.problems() == []
    assert run.summary() == [
        "The call to the sleeping pool was answered after 2.5 s.",
        "2 items of a job and 5 of 5 calls; ok: each answered once.",
        "60 replica-seconds in 60 s; 2 replicas throughout would be 120.",
    ]


def test_a_lost_call_an_item_twice_and_a_pool_awake_are_problems(run: AutoscaleRun) -> None:
    twice = b'{"custom_id":"a"}\n{"custom_id":"b"}\n{"custom_id":"b"}\n'
    run.job.files.results.write_bytes(twice)

    problems = replace(run, answered=4, is_at_zero=False).problems()

    assert "1 requests were answered more than once" in problems
    assert problems[-2:] == ["5 calls had 4 answers", "the pool did not go back to zero"]
    assert "FAILED" in "".join(replace(run, answered=4).summary())
