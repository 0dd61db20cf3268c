"""Goal: the offsets of all partitions come from one call, and none is left out unnoticed."""

from typing import Any, cast

import pytest
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from topics.clients.partition_offsets import offsets_at


class FakeConsumer:
    """Answers as a broker with some partitions, of which one may have no leader."""

    def __init__(self, *, leaderless: int | None = None, known_count: int = 3) -> None:
        self._leaderless, self._known_count = leaderless, known_count
        self.asked: list[list[int]] = []

    def offsets_for_times(self, places: list[TopicPartition], timeout: float) -> list[Any]:
        assert timeout == 3
        self.asked.append([place.offset for place in places])
        return [
            FakeAnswer(p.partition, p.partition == self._leaderless)
            if p.partition < self._known_count
            else p
            for p in places
        ]


class FakeAnswer:
    def __init__(self, number: int, is_leaderless: bool) -> None:
        self.topic, self.partition, self.offset = "t", number, 10 + number
        code = KafkaError.LEADER_NOT_AVAILABLE
        self.error = KafkaError(code) if is_leaderless else None


PLACES = [TopicPartition("t", number) for number in range(3)]


def test_one_call_asks_for_all_partitions() -> None:
    consumer = FakeConsumer()
    found = offsets_at(cast(Consumer, consumer), PLACES, OFFSET_END, 3)
    assert found == {("t", 0): 10, ("t", 1): 11, ("t", 2): 12}
    assert consumer.asked == [[OFFSET_END] * 3]


def test_a_partition_without_an_answer_is_an_error() -> None:
    with pytest.raises(KafkaException) as raised:
        offsets_at(cast(Consumer, FakeConsumer(leaderless=1)), PLACES, OFFSET_END, 3)
    assert raised.value.args[0].code() == KafkaError.LEADER_NOT_AVAILABLE


def test_a_partition_that_the_broker_leaves_out_is_an_error() -> None:
    consumer = FakeConsumer(known_count=2)
    with pytest.raises(KafkaException) as raised:
        offsets_at(cast(Consumer, consumer), PLACES, OFFSET_END, 3)
    assert raised.value.args[0].code() == KafkaError._BAD_MSG
