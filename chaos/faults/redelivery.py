"""Work that comes again, or not at all: records twice, offsets taken back, records deleted."""

import math
import random
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from confluent_kafka import OFFSET_END, Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from chaos.faults.healing import Heal, already_healed, no_target
from chaos.faults.processes import send
from chaos.installations.installation import Installation
from chaos.installations.settings import SESSION_S
from results.writer.writer import GROUP as WRITER_GROUP
from topics.clients.producer import LogProducer
from topics.records.catalogue import REQUESTS_BULK, RESULTS, Topic, batches_topic
from topics.settings import CLIENT_LOG
from topics.tail_readers.topic_tail import TopicTail

T = TypeVar("T")

SHARE: Final = 0.1
RECORDS_MAX: Final = 300
_READ_S_MAX: Final = 20.0
_SEND_S_MAX: Final = 10.0
_CLOSE_S: Final = 1.0
_ASK_S: Final = 5.0
_SERVED_S_MAX: Final = 4 * SESSION_S + 10
BATCHES_BACK: Final = 3
POOL: Final = "simulated-simulated"


def topics_of(pool: str) -> Mapping[str, tuple[Topic, str, str]]:
    """Return name to topic, the group that reads it, and the role of its members."""
    return {
        "requests": (REQUESTS_BULK, "batcher-bulk", "batcher"),
        "batches": (batches_topic(pool, "bulk"), f"gpu-{pool}-bulk", "gpu-consumer"),
        "results": (RESULTS, WRITER_GROUP, "results-writer"),
    }


def republish_records(installation: Installation, target: str, pool: str = POOL) -> Heal:
    """Publish a tenth of a topic's records once more, as they are; one at least.

    Raises DeliveryError when one of them is not acknowledged.
    """
    topic, _, _ = topics_of(pool)[target]
    tail = TopicTail(installation.kafka, topic, client_id="chaos-again")
    records = tail.read_to_end(_READ_S_MAX)
    tail.close()
    if not records:
        return no_target
    count = min(RECORDS_MAX, math.ceil(len(records) * SHARE))
    producer = LogProducer(installation.kafka, client_id="chaos-again")
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


def rewind_offsets(installation: Installation, target: str, pool: str = POOL) -> Heal:
    """Take the group of a topic back: to its first record, or by `BATCHES_BACK` each of batches.

    1. Stop its members, so that their sessions end. 2. Commit. 3. Let them go on: they join anew
    and read again. Batches that were read before run in tenths, few at once, so all of a storm's
    batches again would take longer than the storm.
    """
    topic, group, role = topics_of(pool)[target]
    pids = [host.roles().get(role) for host in installation.hosts.values()]
    members = [pid for pid in pids if pid is not None and send(pid, signal.SIGSTOP)]
    try:
        _commit(installation, topic, group, BATCHES_BACK if target == "batches" else None)
    finally:
        for pid in members:
            send(pid, signal.SIGCONT)
    return already_healed if members else no_target


def delete_records(installation: Installation, target: str, pool: str = POOL) -> Heal:
    """Delete every record of a topic that is there now, read or not: repair has to find them.

    Raises KafkaException when no broker serves for a while.
    """
    topic, _, _ = topics_of(pool)[target]
    admin = AdminClient(installation.kafka.client_options(), logger=CLIENT_LOG)
    ends = [
        TopicPartition(topic.name, number, OFFSET_END) for number in range(topic.partition_count)
    ]
    kept_from = _when_served(
        lambda: [found.result(_READ_S_MAX) for found in admin.delete_records(ends).values()]
    )
    return already_healed if any(place.low_watermark > 0 for place in kept_from) else no_target


def _commit(installation: Installation, topic: Topic, group: str, back: int | None) -> None:
    """Commit offsets `back` records before those of now; 0 when None. Raises KafkaException."""
    reader = Consumer(
        installation.kafka.client_options() | {"group.id": group, "enable.auto.commit": False},
        logger=CLIENT_LOG,
    )
    try:  # until its members are out
        _when_served(
            lambda: reader.commit(offsets=_places(reader, topic, back), asynchronous=False)
        )
    finally:
        reader.close()


def _when_served(ask: Callable[[], T]) -> T:
    """Ask until a broker answers, which may have been killed just before. Raises KafkaException."""
    deadline_s = time.monotonic() + _SERVED_S_MAX
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(SESSION_S / 10)


def _places(reader: Consumer, topic: Topic, back: int | None) -> list[TopicPartition]:
    places = [TopicPartition(topic.name, number, 0) for number in range(topic.partition_count)]
    if back is None:
        return places
    committed = reader.committed(places, timeout=_ASK_S)
    return [
        TopicPartition(place.topic, place.partition, max(0, place.offset - back))
        for place in committed
    ]
