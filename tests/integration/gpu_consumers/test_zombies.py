"""Goal: a replica that was paused past its session changes nothing that counts, and lets go."""

import time
from pathlib import Path

import pytest

from cli.stack.services.embedded_kafka import SESSION_TIMEOUT_S
from tests.integration.gpu_consumers.bench import Bench, batch, items, job
from tests.integration.gpu_consumers.replicas import (
    SESSION_S,
    Replica,
    await_that,
    faults,
    running,
)
from topics.records.records import Chunk
from topics.settings import KafkaSettings

LET_GO_S_MAX = 10.0
SLOW = b'{"messages":[{"role":"user","content":"SLOW"}]}'
FAST = b'{"messages":[{"role":"user","content":"fast"}]}'


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("protocol", "session_s"), [("classic", SESSION_S), ("consumer", SESSION_TIMEOUT_S)]
)
def test_a_paused_replica_publishes_at_most_and_frees_its_engine(
    bench: Bench, kafka: KafkaSettings, tmp_path: Path, protocol: str, session_s: float
) -> None:
    """Eight batches, each with one item that the first replica would hold for ten minutes."""
    slow = faults(("SLOW", "slow"), slow_s=600)
    zombie = Replica(
        kafka,
        tmp_path,
        "zombie",
        MILLRACE_ENGINE_SIMULATED_FAULTS=slow,
        MILLRACE_KAFKA_GROUP_PROTOCOL=protocol,
    )
    with running(zombie):
        bench.await_owner()
        for number in range(8):
            one = [*items(10 * number, 9, FAST), *items(10 * number + 9, 1, SLOW)]
            bench.send(batch(Chunk(job(), one)), number)
        await_that(lambda: in_flight(zombie) == 8, 30, "only slow items")
        zombie.pause()
        paused_s = time.monotonic()
        heir = Replica(kafka, tmp_path, "heir", MILLRACE_KAFKA_GROUP_PROTOCOL=protocol)
        with running(heir):
            await_that(lambda: bench.has_lag(0), 40, "the heir to finish")
            await_that(lambda: time.monotonic() - paused_s >= 3 * session_s, 30, "three sessions")
            before = bench.outcomes(80)
            assert {outcome.index for outcome in before} == set(range(80))
            assert len(before) == 80
            zombie.resume()
            let_go_s = await_that(lambda: in_flight(zombie) == 0, 30, "the zombie to let go")
            assert let_go_s <= LET_GO_S_MAX
            assert bench.has_lag(0)

            for number in range(8):
                bench.send(batch(Chunk(job(2), items(100 + number, 1, FAST))), number)
            after = bench.outcomes(88)
            await_that(lambda: bench.has_lag(0), 20, "the group of two")
    published = [outcome.index for outcome in after if outcome.index < 80]
    assert len(published) <= 80 + 8 * 9  # what the zombie had answers for, and nothing else
    assert all(outcome.index % 10 != 9 for outcome in after[80:] if outcome.index < 80)


def in_flight(replica: Replica) -> float:
    """Return what runs, or -1 while the replica does not answer."""
    return replica.metrics().get("millrace_replica_items_in_flight", -1)
