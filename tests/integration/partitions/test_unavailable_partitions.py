"""Goal: an unavailable partition holds up what lies on it, nothing else, and ends no role.

Each test freezes the broker of one partition for longer than the delivery timeout.
"""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from tests.integration.gpu_consumers.threaded_replica import (
    BATCHES,
    POOL,
    ThreadedReplica,
    batch,
    items,
    job,
)
from tests.integration.partitions.conftest import DEAD
from tests.integration.partitions.log_records import read_partitions, wait_unavailable
from tests.support.two_brokers import TwoBrokers
from tests.support.until import until
from topics.records.catalogue import RESULTS, SHARED_TOPICS, Topic, pool_topics
from topics.records.codec import decode
from topics.records.records import Chunk, Outcomes
from topics.settings import KafkaSettings

BATCH_COUNT = 160
HEALTHY = [number for number in range(8) if number != DEAD]


def create_topics(brokers: TwoBrokers, kafka: KafkaSettings, topic: Topic) -> None:
    """Create all topics; one partition of `topic` is on the broker that a test freezes."""
    topics = [*SHARED_TOPICS, *pool_topics(POOL)]
    brokers.create_topics(kafka, topics, {topic.name: {min(DEAD, topic.partition_count - 1)}})


def outcomes(kafka: KafkaSettings, partitions: list[int]) -> Counter[tuple[int, int]]:
    """Count the outcomes of each job and item on partitions of `results`."""
    found = read_partitions(kafka, RESULTS, partitions)
    records = [decode(Outcomes, record.value, record.headers) for record in found]
    return Counter((r.job.job_id.int, item.index) for r in records for item in r.items)


def test_a_replica_publishes_the_outcomes_of_other_jobs(
    brokers: TwoBrokers, kafka: KafkaSettings, closing: ExitStack, tmp_path: Path
) -> None:
    create_topics(brokers, kafka, RESULTS)
    replica = ThreadedReplica(kafka, tmp_path)
    closing.callback(replica.close)
    closing.callback(brokers.thaw)
    replica.start()
    for number in range(BATCH_COUNT):
        if number == 8:
            until(lambda: outcomes(kafka, [DEAD]).total() == 2)  # its first batch
            brokers.freeze()
        replica.send(batch(Chunk(job(number % 8), items(2 * number, 2))))
    expected = {(n % 8, 2 * n + second) for n in range(BATCH_COUNT) for second in range(2)}
    of_dead = {key for key in expected if key[0] == DEAD}
    until(lambda: outcomes(kafka, HEALTHY).keys() == expected - of_dead)
    wait_unavailable(RESULTS, DEAD, 2 * kafka.delivery_timeout_s)
    assert replica.failure is None
    assert 0 < replica.lag() < BATCH_COUNT

    brokers.thaw()
    until(lambda: outcomes(kafka, [DEAD]).keys() == of_dead)
    replica.await_lag(0)
    assert set(outcomes(kafka, [*range(8)]).values()) == {1}
    assert len(replica.engine.bodies) == 2 * BATCH_COUNT
    requeued = len(read_partitions(kafka, BATCHES, [0])) - BATCH_COUNT
    assert 0 < requeued <= BATCH_COUNT
    replica.close()
    assert replica.failure is None
