"""Goal: an unavailable partition of `replies` or `attempts` holds up what needs it, nothing else.

Each test freezes the broker of one partition for longer than the delivery timeout.
"""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from tests.integration.gpu_consumers.caller import CALLER_ID, PARTITION, Caller, call_of
from tests.integration.gpu_consumers.threaded_replica import (
    ThreadedReplica,
    batch,
    items,
    job,
)
from tests.integration.partitions.conftest import DEAD
from tests.integration.partitions.frozen_topics import (
    create_topics,
    dead_partition,
    patient,
    until,
    wait_readable,
    wait_unreadable,
)
from tests.integration.partitions.log_records import read_partitions, wait_unavailable
from tests.support.two_brokers import TwoBrokers
from topics.clients.producer import RecordProducer
from topics.records.catalogue import ATTEMPTS, REPLIES, RESULTS
from topics.records.codec import decode
from topics.records.records import Batch, Chunk, Outcomes, Replies
from topics.settings import KafkaSettings

pytestmark = pytest.mark.timeout(240)

HEALTHY = PARTITION + 1
"""Another partition of `replies`."""

CALLERS = {PARTITION: CALLER_ID, HEALTHY: "api-2"}
"""The caller of each partition."""


def start_replica(
    kafka: KafkaSettings, folder: Path, closing: ExitStack, brokers: TwoBrokers
) -> ThreadedReplica:
    """Create a replica of both classes; it is closed when its broker has returned."""
    replica = ThreadedReplica(kafka, folder, "both")
    replica.producer.close()
    replica.producer = RecordProducer(patient(kafka), client_id="test", linger_ms=0)
    closing.callback(replica.close)
    closing.callback(brokers.thaw)
    return replica


def call_on(partition: int, number: int, *, stream: bool = False) -> Batch:
    """Return a batch of one call whose reply belongs on a partition."""
    found = call_of(number, stream=stream)
    (chunk,) = found.parts
    assert chunk.job.call is not None
    call = msgspec.structs.replace(
        chunk.job.call, caller_id=CALLERS[partition], reply_partition=partition
    )
    return batch(Chunk(msgspec.structs.replace(chunk.job, call=call), chunk.items))


def ends(kafka: KafkaSettings, partition: int) -> Counter[int]:
    """Count the ends of each call's reply on a partition."""
    found = read_partitions(kafka, REPLIES, [partition])
    records = [decode(Replies, record.value, record.headers) for record in found]
    return Counter(r.request_id.int for each in records for r in each.replies if r.end)


def outcome_count(kafka: KafkaSettings) -> Counter[tuple[int, int]]:
    """Count the outcomes and bills of each job or call."""
    found = read_partitions(kafka, RESULTS, range(RESULTS.partition_count))
    records = [decode(Outcomes, record.value, record.headers) for record in found]
    return Counter((r.job.job_id.int, item.index) for r in records for item in r.items)


def test_a_replica_answers_calls_of_other_partitions_of_replies(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path
) -> None:
    create_topics(brokers, kafka, REPLIES)
    assert PARTITION == DEAD
    replica = start_replica(kafka, tmp_path, closing, brokers)
    for caller_id in CALLERS.values():
        closing.callback(Caller(patient(kafka), caller_id).close)
    replica.start()

    def send(numbers: range) -> None:
        for number in numbers:
            for partition, request in ((DEAD, number), (HEALTHY, 1000 + number)):
                call = call_on(partition, request, stream=number % 2 == 0)
                replica.send(call, partition=number % 8, job_class="interactive")

    send(range(1))
    until(lambda: len(ends(kafka, HEALTHY) + ends(kafka, DEAD)) == 2)
    brokers.freeze()
    send(range(1, 8))
    until(lambda: len(ends(kafka, HEALTHY)) == 8)
    wait_unavailable(REPLIES, DEAD, 2 * kafka.delivery_timeout_s)
    send(range(8, 16))
    until(lambda: len(ends(kafka, HEALTHY)) == 16)
    until(lambda: replica.has_lag(0, "interactive"))  # no call waits for its reply
    assert replica.failure is None

    brokers.thaw()
    until(lambda: ends(kafka, DEAD).keys() == {*range(8)})
    assert set((ends(kafka, DEAD) + ends(kafka, HEALTHY)).values()) == {1}
    billed = outcome_count(kafka)
    assert len(billed) == len(replica.engine.bodies) == 32
    assert set(billed.values()) == {1}
    replica.close()
    assert replica.failure is None


def test_a_replica_runs_new_batches_while_attempts_cannot_be_read(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path
) -> None:
    create_topics(brokers, kafka, ATTEMPTS)
    replica = start_replica(kafka, tmp_path, closing, brokers)
    replica.send(batch(Chunk(job(1), items(0, 20))))  # on the log before it: suspect
    brokers.freeze()
    replica.start()
    for number in range(8):
        replica.send(batch(Chunk(job(2), items(10 * number, 10))), partition=number)
    new = {(2, index) for index in range(80)}
    until(lambda: outcome_count(kafka).keys() == new)
    wait_unreadable(ATTEMPTS, 2 * kafka.delivery_timeout_s)
    assert outcome_count(kafka).keys() == new
    assert replica.failure is None

    brokers.thaw()
    suspect = {(1, index) for index in range(20)}
    until(lambda: outcome_count(kafka).keys() == new | suspect)
    replica.await_lag(0)
    wait_readable(ATTEMPTS)
    assert set(outcome_count(kafka).values()) == {1}
    assert len(replica.engine.bodies) == len(new | suspect)
    assert dead_partition(ATTEMPTS) == 0
    replica.close()
    assert replica.failure is None
