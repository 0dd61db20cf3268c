"""Goal: a host whose replica is killed again and again rests, fails no item, and then serves."""

import signal
from functools import partial
from pathlib import Path

import pytest

from core.outcomes import Outcome
from gpu_consumers.quarantine.attempt_log import read_attempts
from gpu_consumers.quarantine.host_history import UNEXPLAINED_ENDS_MAX
from tests.integration.gpu_consumers.replica_processes import ReplicaProcess, running
from tests.integration.gpu_consumers.threaded_replica import ThreadedReplica, batch, items, job
from tests.support.until import until, until_found
from topics.records.records import Chunk
from topics.settings import KafkaSettings

GOOD = b'{"messages":[{"role":"user","content":"hello"}]}'
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
