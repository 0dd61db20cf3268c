"""Goal: an item that crashes its process fails alone; a host that crashes all processes rests."""

import signal
from functools import partial
from pathlib import Path

import msgspec
import pytest

from cli.stack.processes.supervisor import Supervisor
from core.outcomes import Outcome
from gpu_consumers.quarantine.attempt_log import read_attempts
from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX
from tests.integration.gpu_consumers.replica_processes import (
    ReplicaProcess,
    faults,
    replica_child,
    running,
)
from tests.integration.gpu_consumers.threaded_replica import ThreadedReplica, batch, items, job
from tests.support.until import until, until_found
from topics.records.records import Chunk, ItemOutcome
from topics.settings import KafkaSettings

GOOD = b'{"messages":[{"role":"user","content":"hello"}]}'
FAULTS = faults(("CRASH", "crash"), ("FREEZE", "freeze"), ("OOM", "oom"), ("HANG", "hang"))


def body(text: str) -> bytes:
    return GOOD.replace(b"hello", text.encode())


def code_of(outcome: ItemOutcome) -> str:
    code: str = msgspec.json.decode(outcome.body)["error"]["code"]
    return code


def replica_log(folder: Path) -> str:
    """Return the log of all processes of the replica, with the reasons of their exits."""
    return (folder / "replica.log").read_text(errors="replace")


@pytest.mark.timeout(200)
def test_each_poison_item_fails_alone_after_three_restarts_at_most(
    replica: ThreadedReplica, kafka: KafkaSettings, tmp_path: Path
) -> None:
    poison = {
        7: ("CRASH", "item_crashes_engine"),
        48: ("HANG", "item_timeout"),
        61: ("OOM", "item_out_of_memory"),
        133: ("FREEZE", "item_crashes_engine"),
    }
    lines = items(0, 200, GOOD)
    for index, (text, _) in poison.items():
        lines[index] = msgspec.structs.replace(lines[index], body=body(text))
    for first in range(0, 200, 50):
        replica.send(batch(Chunk(job(), lines[first : first + 50])), first // 50)
    env = {
        "MILLRACE_ENGINE_SIMULATED_FAULTS": FAULTS,
        "MILLRACE_ENGINE_ITEM_TIMEOUT_S": "2",
        "MILLRACE_GPU_STUCK_S_MAX": "2",
        "MILLRACE_GPU_ENGINE_REACTION_S": "3",
    }
    supervisor = Supervisor(tmp_path)
    supervisor.start([replica_child(kafka, tmp_path, "replica", env)])

    def is_done() -> bool:
        supervisor.run_once()
        return replica.has_lag(0)

    try:
        until(is_done, timeout_s=170)
        restarts = supervisor.restart_counts()["replica"]
    finally:
        supervisor.stop()

    records = replica.outcome_records(200)
    outcomes: dict[int, ItemOutcome] = {}
    for outcome in (item for record in records for item in record.items):
        outcomes.setdefault(outcome.index, outcome)
    failed = {
        index: outcome for index, outcome in outcomes.items() if outcome.outcome is Outcome.FAILED
    }
    assert sorted(outcomes) == list(range(200))
    assert {index: code_of(outcome) for index, outcome in failed.items()} == {
        index: code for index, (_, code) in poison.items()
    }
    assert restarts <= 3 * len(poison), replica_log(tmp_path)
    ends = {end for record in records for end in record.process_ends}
    assert 2 <= len(ends) <= 2 * 2  # each of two items in a tenth of its batch, and alone


RESTS = "this host ends its processes whatever they run"
ENV = {"MILLRACE_ENGINE_SIMULATED_LATENCY_MS": "500", "MILLRACE_HOST_ID": "node-1"}


def is_ready(kafka: KafkaSettings, earlier_ends: int) -> bool:
    """Return whether the process that knows of so many ends has recorded that it is ready."""
    processes = [a.process for a in read_attempts(kafka, client_id="test").values() if a.process]
    return any(p.ready_s and len(p.ends) == earlier_ends for p in processes)


@pytest.mark.timeout(200)
def test_a_host_that_is_killed_again_and_again_rests_and_fails_no_item(
    replica: ThreadedReplica, kafka: KafkaSettings, tmp_path: Path
) -> None:
    for first in range(0, 40, 20):
        replica.send(batch(Chunk(job(), items(first, 20, GOOD))), first // 20)
    log = tmp_path / "replica.log"
    for earlier_ends in range(UNEXPLAINED_ENDS_MAX + 1):
        process = ReplicaProcess(kafka, tmp_path, "replica", **ENV)
        with running(process):
            until(partial(is_ready, kafka, earlier_ends), timeout_s=30)
            process.process.send(signal.SIGKILL)
    assert RESTS not in log.read_text()

    process = ReplicaProcess(kafka, tmp_path, "replica", **ENV)
    with running(process):
        until(lambda: RESTS in log.read_text(), timeout_s=30)
        shown = until_found(process.metrics)["millrace_host_unexplained_ends"]
        until(lambda: replica.has_lag(0), timeout_s=60)
    assert shown > UNEXPLAINED_ENDS_MAX, "before the host serves, which resets the count"

    outcomes = replica.outcomes(40)
    assert {outcome.outcome for outcome in outcomes} == {Outcome.SUCCEEDED}
    assert {outcome.index for outcome in outcomes} == set(range(40))
