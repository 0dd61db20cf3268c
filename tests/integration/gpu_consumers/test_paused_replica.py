"""Goal: a replica paused past its session changes no result and aborts its work when it resumes."""

import time
from pathlib import Path
from typing import cast

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
from topics.records.catalogue import RESULTS
from topics.records.records import Chunk, Outcomes
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
            published(replica, set(range(80)))
            paused.resume()
            until(lambda: in_flight(paused) == 0, timeout_s=ABORT_S_MAX)
            assert replica.has_lag(0)

            for number in range(8):
                replica.send(batch(Chunk(job(2), items(100 + number, 1, FAST))), number)
            until(lambda: replica.has_lag(0), timeout_s=40)
            new = set(range(100, 108))
            indexes = [n for n in published(replica, new | set(range(80))) if n not in new]
    assert len(indexes) <= 80 + 8 * 9  # twice: only items that the paused replica had answered
    assert sorted(index for index in indexes if index % 10 == 9) == list(range(9, 80, 10))


def published(replica: ThreadedReplica, least: set[int]) -> list[int]:
    """Wait until the items `least` have outcomes; return the indexes of all that were read."""

    def indexes(found: list[object]) -> list[int]:
        return [item.index for record in found for item in cast(Outcomes, record).items]

    return indexes(replica.read(RESULTS, lambda found: least <= set(indexes(found))))


def in_flight(replica: ReplicaProcess) -> float:
    """Return the items in flight, or -1 while the replica does not answer."""
    return replica.metrics().get("millrace_replica_items_in_flight", -1)
