"""Asks brokers for the first or last offsets of partitions: one request to each leader.

`get_watermark_offsets` sends two requests for each partition.
"""

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition


def offsets_at(
    consumer: Consumer, partitions: Iterable[TopicPartition], at: int, timeout_s: float
) -> dict[tuple[str, int], int]:
    """Return the offset `at` OFFSET_BEGINNING or OFFSET_END of each partition.

    Raises KafkaException, also if one partition has no answer.
    """
    asked = [TopicPartition(place.topic, place.partition, at) for place in partitions]
    found = consumer.offsets_for_times(asked, timeout=timeout_s)
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
        if place.offset < 0:  # the broker left the partition out
            raise KafkaException(KafkaError(KafkaError._BAD_MSG))  # noqa: SLF001
    return {(place.topic, place.partition): place.offset for place in found}
