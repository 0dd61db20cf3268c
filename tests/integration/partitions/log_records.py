"""What lies on a topic."""

from collections.abc import Iterable
from contextlib import closing
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.until import until, until_found
from topics.metrics import PARTITION_UNAVAILABLE_SECONDS
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings

_AVAILABLE_S_MAX = 90.0
_REQUEST_S_MAX = 5.0


def read_partitions(
    kafka: KafkaSettings, topic: Topic, partitions: Iterable[int]
) -> list[ReceivedRecord]:
    """Return all records that lie on the partitions now.

    Waits for a partition without a leader. A broker that was frozen acknowledges what its sockets
    hold as soon as it runs, before the controller makes it leader again: a reader that asks then
    has to wait. Each attempt has a client of its own: one that first saw the partition without a
    leader goes on to call it unknown.
    """
    names = [TopicPartition(kafka.topic_prefix + topic.name, number, 0) for number in partitions]
    found: list[ReceivedRecord] = []
    for place in names:
        found += until_found(partial(_read, kafka, place), timeout_s=_AVAILABLE_S_MAX)[0]
    return found


def _read(kafka: KafkaSettings, place: TopicPartition) -> tuple[list[ReceivedRecord]] | None:
    """Return the records of a partition, None if it is unavailable."""
    found: list[ReceivedRecord] = []
    options = {"group.id": "test-reader", "enable.auto.commit": False}
    with closing(Consumer(kafka.client_options() | options)) as reader:
        try:
            _, end = reader.get_watermark_offsets(place, timeout=_REQUEST_S_MAX)
        except KafkaException:
            return None
        if end == 0:
            return ([],)  # the position of an empty partition stays unknown
        reader.assign([place])
        while reader.position([place])[0].offset < end:
            found += received_records(reader.consume(1000, 0.1), kafka.topic_prefix)
    return (found,)


def wait_unavailable(topic: Topic, partition: int, seconds: float) -> None:
    """Wait until records of this process wait that long for a partition."""
    gauge = PARTITION_UNAVAILABLE_SECONDS.labels(topic.name, str(partition))
    until(lambda: gauge._value.get() >= seconds)
