"""Asks brokers for the first or last offsets of partitions: one request to each leader.

`get_watermark_offsets` sends two requests for each partition, one after the other.
"""

from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaException, TopicPartition


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
    return {(place.topic, place.partition): place.offset for place in found}
