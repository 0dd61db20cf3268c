"""Goal: an item that ends, stops or fills its process fails alone, whatever lies beside it."""

from pathlib import Path

import msgspec
import pytest

from cli.stack.processes.supervisor import Supervisor
from core.outcomes import Outcome
from tests.integration.gpu_consumers.bench import Bench, batch, items, job
from tests.integration.gpu_consumers.replicas import await_that, faults, replica_child
from topics.records.catalogue import ATTEMPTS
from topics.records.records import Chunk, ItemOutcome
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail import TopicTail

GOOD = b'{"messages":[{"role":"user","content":"hello"}]}'
FAULTS = faults(("CRASH", "crash"), ("FREEZE", "freeze"), ("OOM", "oom"), ("HANG", "hang"))


def body(text: str) -> bytes:
    return GOOD.replace(b"hello", text.encode())


def code_of(outcome: ItemOutcome) -> str:
    code: str = msgspec.json.decode(outcome.body)["error"]["code"]
    return code


def replica_log(folder: Path) -> str:
    """What each life of the replica said: why one ended is there, or it was killed."""
    return (folder / "replica.log").read_text(errors="replace")


@pytest.mark.timeout(200)
def test_poison_fails_alone_and_its_replica_starts_again_three_times_at_most(
    bench: Bench, kafka: KafkaSettings, tmp_path: Path
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
        bench.send(batch(Chunk(job(), lines[first : first + 50])), first // 50)
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
        return bench.has_lag(0)

    try:
        await_that(is_done, 170, "every batch")
        restarts = supervisor.restart_counts()["replica"]
    finally:
        supervisor.stop()

    ends: dict[int, ItemOutcome] = {}
    for outcome in bench.outcomes(200):
        ends.setdefault(outcome.index, outcome)
    failed = {index: end for index, end in ends.items() if end.outcome is Outcome.FAILED}
    assert sorted(ends) == list(range(200))
    assert {index: code_of(end) for index, end in failed.items()} == {
        index: code for index, (_, code) in poison.items()
    }
    assert restarts <= 3 * len(poison), replica_log(tmp_path)


@pytest.mark.timeout(300)
def test_first_deliveries_write_no_attempt(
    bench: Bench, kafka: KafkaSettings, tmp_path: Path
) -> None:
    bench.start()
    for partition in range(8):
        bench.send(batch(Chunk(job(), items(10 * partition, 10))), partition)
    assert len(bench.outcomes(80)) == 80
    bench.await_lag(0)
    tail = TopicTail(kafka, ATTEMPTS, client_id="test-attempts")
    assert tail.read_to_end(10) == []
    tail.close()
