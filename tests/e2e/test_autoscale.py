"""Goal: a pool at zero wakes for a job and for a call, answers all once, and sleeps again."""

import json
from collections.abc import Iterator

import psutil
import pytest

from cli.admin.scaling_records import read_scaling
from tests.support.job_checks import assert_conserved, ended, submit, watch
from tests.support.stacks import Stack, running_stack
from tests.support.until import until
from topics.records.scaling import PoolScaling

POOL = "simulated-simulated"
ITEMS = 120
POLICY = f"""
[pools.{POOL}]
replicas_min = 0
replicas_max = 2
idle_s = 2
stabilization_s = 3
"""
SLEEP_S_MAX = 150.0
"""Longer than `idle_s`, the window, and the steps of two replicas, on a busy machine."""


@pytest.fixture(scope="module")
def scaled_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("scaled")
    policy = folder / "scaling.toml"
    policy.write_text(POLICY)
    latency = ("--simulated-latency-ms", "100", "--simulated-concurrency", "8")
    with running_stack(folder / "data", "--autoscale", str(policy), *latency) as stack:
        yield stack


def replicas(stack: Stack) -> int:
    """Return the replicas that run as processes, those that drain included."""
    children = psutil.Process(stack.process.pid).children()
    return sum("gpu_consumers" in command_of(child) for child in children)


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def await_sleep(stack: Stack) -> None:
    until(lambda: replicas(stack) == 0, "the pool at zero", SLEEP_S_MAX)


def scaling_of(stack: Stack) -> PoolScaling:
    return read_scaling(stack.kafka).pool(POOL)


@pytest.mark.timeout(600)
def test_a_pool_wakes_for_work_answers_each_item_once_and_sleeps_again(
    scaled_stack: Stack,
) -> None:
    stack = scaled_stack
    assert replicas(stack) == 0

    job = submit(stack.client, stack.model, ITEMS)
    done = watch(stack.client, job.id, ended, timeout_s=150)
    assert done.status == "completed"
    assert_conserved(stack.client, done, ITEMS)
    await_sleep(stack)
    assert scaling_of(stack).target == 0

    answer = stack.client.with_options(max_retries=0).chat.completions.create(
        model=stack.model, messages=[{"role": "user", "content": "hello"}], max_tokens=8
    )
    assert answer.choices[0].message.content
    assert replicas(stack) >= 1
    await_sleep(stack)

    found = scaling_of(stack)
    assert (found.target, found.kinds, found.mode) == (0, [], "active")
    # The state is repeated each 5 s, with the decision of then.
    until(lambda: json.loads(scaling_of(stack).decision)["live"] == 0)
    assert found.start_s > 0
