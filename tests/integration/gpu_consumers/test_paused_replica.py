"""Goal: a replica paused past its session changes no result and aborts its work when it resumes."""

import time
from pathlib import Path

import pytest

from cli.stack.services.embedded_kafka import SESSION_TIMEOUT_S
from tests.integration.gpu_consumers.replica_processes import (
    SESSION_S,
    ReplicaProcess,
    faults,
    running,
)
from tests.integration.gpu_consumers.threaded_replica import ThreadedReplica, batch, items, job
from tests.support.until import until
from topics.records.records import Chunk
from topics.settings import KafkaSettings

ABORT_S_MAX = 10.0
SLOW = b'{"messages":[{"role":"user","content":"SLOW"}]}'
FAST = b'{"messages":[{"role":"user","content":"fast"}]}'


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "session_s"), [("classic", SESSION_S), ("consumer", SESSION_TIMEOUT_S)]
)
def test_a_resumed_replica_publishes_only_its_answers_and_frees_its_engine(
    replica: ThreadedReplica, kafka: KafkaSettings, tmp_path: Path, protocol: str, session_s: float
) -> None:
    """Each of eight batches has an item that the first replica executes for ten minutes."""
    slow = faults(("SLOW", "slow"), slow_s=600)
    paused = ReplicaProcess(
        kafka,
        tmp_path,
        "paused",
        MILLRACE_ENGINE_SIMULATED_FAULTS=slow,
        MILLRACE_KAFKA_GROUP_PROTOCOL=protocol,
    )
    with running(paused):
        replica.await_owner()
        for number in range(8):
            one = [*items(10 * number, 9, FAST), *items(10 * number + 9, 1, SLOW)]
            replica.send(batch(Chunk(job(), one)), number)
        until(lambda: in_flight(paused) == 8, timeout_s=30)
        paused.pause()
        paused_s = time.monotonic()
        next_owner = ReplicaProcess(
            kafka, tmp_path, "next_owner", MILLRACE_KAFKA_GROUP_PROTOCOL=protocol
        )
        with running(next_owner):
            until(lambda: replica.has_lag(0), timeout_s=40)
            until(lambda: time.monotonic() - paused_s >= 3 * session_s, timeout_s=30)
            before = replica.outcomes(80)
            assert {outcome.index for outcome in before} == set(range(80))
            assert len(before) == 80
            paused.resume()
            until(lambda: in_flight(paused) == 0, timeout_s=ABORT_S_MAX)
            assert replica.has_lag(0)

            for number in range(8):
                replica.send(batch(Chunk(job(2), items(100 + number, 1, FAST))), number)
            after = replica.outcomes(88)
            until(lambda: replica.has_lag(0), timeout_s=20)
    published = [outcome.index for outcome in after if outcome.index < 80]
    assert len(published) <= 80 + 8 * 9  # only items that the paused replica had answered
    assert all(outcome.index % 10 != 9 for outcome in after[80:] if outcome.index < 80)


def in_flight(replica: ReplicaProcess) -> float:
    """Return the items in flight, or -1 while the replica does not answer."""
    return replica.metrics().get("millrace_replica_items_in_flight", -1)
