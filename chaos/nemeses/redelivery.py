"""Work that comes again: records published twice, and group offsets taken back to the beginning."""

import random
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from chaos.installation import Installation
from chaos.nemeses.cure import Cure, nothing
from chaos.nemeses.processes import send
from chaos.settings_of_drills import SESSION_S
from results.writer import GROUP as WRITER_GROUP
from topics.catalogue import REQUESTS_BULK, RESULTS, Topic, batches_topic
from topics.producer import LogProducer
from topics.tail import TopicTail

SHARE: Final = 0.1
RECORDS_MAX: Final = 300
_READ_S_MAX: Final = 20.0
_ASK_S: Final = 5.0
POOL: Final = "simulated-simulated"


def topics_of(pool: str) -> Mapping[str, tuple[Topic, str, str]]:
    """Return name to topic, the group that reads it, and the role of its members."""
    return {
        "requests": (REQUESTS_BULK, "batcher-bulk", "batcher"),
        "batches": (batches_topic(pool, "bulk"), f"gpu-{pool}-bulk", "gpu-consumer"),
        "results": (RESULTS, WRITER_GROUP, "results-writer"),
    }


def publish_again(running: Installation, target: str, pool: str = POOL) -> Cure:
    """Publish a tenth of a topic's records once more, as they are."""
    topic, _, _ = topics_of(pool)[target]
    tail = TopicTail(running.kafka, topic, client_id="chaos-again")
    records = tail.read_to_end(_READ_S_MAX)
    tail.close()
    count = min(RECORDS_MAX, round(len(records) * SHARE))
    producer = LogProducer(running.kafka, client_id="chaos-again")
    for record in random.Random(len(records)).sample(records, count):
        producer.send(
            topic.name,
            record.value,
            partition=record.partition,
            key=record.key,
            headers=record.headers,
        )
    producer.close()
    return nothing


def rewind(running: Installation, target: str, pool: str = POOL) -> Cure:
    """Take the group of a topic back to its first record.

    1. Stop its members, so that their sessions end. 2. Commit the beginning. 3. Let them go on:
    they join anew and read everything again.
    """
    topic, group, role = topics_of(pool)[target]
    pids = [host.roles().get(role) for host in running.hosts.values()]
    members = [pid for pid in pids if pid is not None]
    for pid in members:
        send(pid, signal.SIGSTOP)
    try:
        _commit_beginning(running, topic, group)
    finally:
        for pid in members:
            send(pid, signal.SIGCONT)
    return nothing


def _commit_beginning(running: Installation, topic: Topic, group: str) -> None:
    places: Sequence[TopicPartition] = [
        TopicPartition(topic.name, number, 0) for number in range(topic.partition_count)
    ]
    reader = Consumer(
        running.kafka.client_options() | {"group.id": group, "enable.auto.commit": False}
    )
    deadline_s = time.monotonic() + 4 * SESSION_S + 10
    try:
        while True:
            try:
                reader.commit(offsets=list(places), asynchronous=False)
                return
            except KafkaException:  # its members are not out yet
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(SESSION_S / 10)
    finally:
        reader.close()
