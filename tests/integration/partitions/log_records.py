"""What lies on a topic, read without waiting for unavailable partitions."""

from collections.abc import Iterable
from contextlib import closing

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.support.until import until
from topics.metrics import PARTITION_UNAVAILABLE_SECONDS
from topics.records.catalogue import Topic
from topics.records.received_record import ReceivedRecord, received_records
from topics.settings import KafkaSettings


def read_partitions(
    kafka: KafkaSettings, topic: Topic, partitions: Iterable[int]
) -> list[ReceivedRecord]:
    """Return all records that lie on the partitions now; none of an unavailable one."""
    name = kafka.topic_prefix + topic.name
    found: list[ReceivedRecord] = []
    options = {"group.id": "test-reader", "enable.auto.commit": False}
    with closing(Consumer(kafka.client_options() | options)) as reader:
        for number in partitions:
            place = TopicPartition(name, number, 0)
            try:
                _, end = reader.get_watermark_offsets(place, timeout=5)
            except KafkaException:
                continue
            if end == 0:
                continue  # the position of an empty partition stays unknown
            reader.assign([place])
            while reader.position([place])[0].offset < end:
                found += received_records(reader.consume(1000, 0.1), kafka.topic_prefix)
    return found


def wait_unavailable(topic: Topic, partition: int, seconds: float) -> None:
    """Wait until records of this process wait that long for a partition."""
    gauge = PARTITION_UNAVAILABLE_SECONDS.labels(topic.name, str(partition))
    until(lambda: gauge._value.get() >= seconds)
