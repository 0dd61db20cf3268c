"""Redelivered or lost records: records twice, offsets reset, records deleted."""

import math
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.faults.processes import send_signal
from chaos.installations.installation import Installation
from chaos.installations.settings import SESSION_S
from results.writer.writer import GROUP as WRITER_GROUP
from topics.clients.producer import RecordProducer
from topics.records.catalogue import REQUESTS_BULK, RESULTS, Topic, batches_topic
from topics.settings import CLIENT_LOG
from topics.tail_readers.topic_tail_reader import TopicTailReader

T = TypeVar("T")

SHARE: Final = 0.1
RECORDS_MAX: Final = 300
_READ_S_MAX: Final = 20.0
_SEND_S_MAX: Final = 10.0
_CLOSE_S: Final = 1.0
_REQUEST_S_MAX: Final = 5.0
_SERVED_S_MAX: Final = 4 * SESSION_S + 10
BATCHES_BACK: Final = 3
POOL: Final = "simulated-simulated"


class ConsumedTopic(NamedTuple):
    """A topic, its consumer group, and the role of the group's members."""

    topic: Topic
    group: str
    role: str


CONSUMED: Final[Mapping[str, ConsumedTopic]] = {
    "requests": ConsumedTopic(REQUESTS_BULK, "batcher-bulk", "batcher"),
    "batches": ConsumedTopic(batches_topic(POOL, "bulk"), f"gpu-{POOL}-bulk", "gpu-consumer"),
    "results": ConsumedTopic(RESULTS, WRITER_GROUP, "results-writer"),
}


def republish_records(installation: Installation, target: str) -> Heal:
    """Publish a tenth of a topic's records again, at least one.

    Raises DeliveryError when one of them is not acknowledged.
    """
    topic = CONSUMED[target].topic
    tail = TopicTailReader(installation.kafka, topic, client_id="chaos-again")
    records = tail.read_to_end(_READ_S_MAX)
    tail.close()
    if not records:
        return no_target
    count = min(RECORDS_MAX, math.ceil(len(records) * SHARE))
    producer = RecordProducer(installation.kafka, client_id="chaos-again")
    try:
        for record in random.Random(len(records)).sample(records, count):
            producer.send(
                topic.name,
                record.value,
                partition=record.partition,
                key=record.key,
                headers=record.headers,
            )
        producer.flush(_SEND_S_MAX)
    finally:
        producer.close(_CLOSE_S)
    return already_healed


def rewind_offsets(installation: Installation, target: str) -> Heal:
    """Reset the group's offsets: to the first record, or by `BATCHES_BACK` on a topic of batches.

    1. Pause the members, so that their sessions expire. 2. Commit the offsets. 3. Resume the
    members, which rejoin and read again. Redelivered batches run in tenths with few in flight, so a
    storm's batches would all together take longer than the storm.
    """
    topic, group, role = CONSUMED[target]
    pids = [host.roles().get(role) for host in installation.hosts.values()]
    members = [pid for pid in pids if pid is not None and send_signal(pid, signal.SIGSTOP)]
    try:
        _commit(installation, topic, group, BATCHES_BACK if target == "batches" else None)
    finally:
        for pid in members:
            send_signal(pid, signal.SIGCONT)
    return already_healed if members else no_target


def delete_records(installation: Installation, target: str) -> Heal:
    """Delete all present records of a topic, read or unread, so that re-emit has to replace them.

    Raises KafkaException when no broker answers for a while.
    """
    topic = CONSUMED[target].topic
    admin = AdminClient(installation.kafka.client_options(), logger=CLIENT_LOG)
    ends = [
        TopicPartition(topic.name, number, OFFSET_END) for number in range(topic.partition_count)
    ]
    low_watermarks = _retry_until_served(
        lambda: [found.result(_READ_S_MAX) for found in admin.delete_records(ends).values()]
    )
    return already_healed if any(found.low_watermark > 0 for found in low_watermarks) else no_target


def _commit(installation: Installation, topic: Topic, group: str, back: int | None) -> None:
    """Commit offsets `back` before the committed ones, or 0 for None. Raises KafkaException."""
    reader = Consumer(
        installation.kafka.client_options() | {"group.id": group, "enable.auto.commit": False},
        logger=CLIENT_LOG,
    )
    try:  # fails until the members have left the group
        _retry_until_served(
            lambda: reader.commit(offsets=_offsets(reader, topic, back), asynchronous=False)
        )
    finally:
        reader.close()


def _retry_until_served(call: Callable[[], T]) -> T:
    """Call until a broker answers; one may just have been killed. Raises KafkaException."""
    deadline_s = time.monotonic() + _SERVED_S_MAX
    while True:
        try:
            return call()
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(SESSION_S / 10)


def _offsets(reader: Consumer, topic: Topic, back: int | None) -> list[TopicPartition]:
    start = [TopicPartition(topic.name, number, 0) for number in range(topic.partition_count)]
    if back is None:
        return start
    committed = reader.committed(start, timeout=_REQUEST_S_MAX)
    return [
        TopicPartition(partition.topic, partition.partition, max(0, partition.offset - back))
        for partition in committed
    ]
