"""Goal: a member knows which of its partitions it reads."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from topics.clients.consumer import GroupConsumer
from topics.settings import KafkaSettings

FIRST, SECOND = ("events", 0), ("events", 1)


def no_answer(*_: Any, **__: Any) -> list[TopicPartition]:
    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def member() -> GroupConsumer:
    """Return a member of a group without a broker, which owns two partitions."""
    consumer = GroupConsumer(
        KafkaSettings(bootstrap_servers="nobody:1", topic_prefix="t."),
        group="webhooks",
        topics=["events"],
        client_id="test",
        on_assign=lambda _: None,
        on_revoke=lambda _: None,
    )
    consumer._consumer.close()
    client: Any = SimpleNamespace(
        pause=lambda _: None,
        resume=lambda _: None,
        memberid=lambda: "member",
        committed=no_answer,
    )
    consumer._consumer = client
    consumer._assign(client, places())
    return consumer


def places() -> list[TopicPartition]:
    return [TopicPartition("t.events", number) for number in range(2)]


def test_a_paused_partition_is_not_read_until_it_is_resumed() -> None:
    consumer = member()
    assert consumer.read_partitions == {FIRST, SECOND}
    consumer.pause([FIRST])
    assert consumer.read_partitions == {SECOND}
    consumer.resume([FIRST])
    assert consumer.read_partitions == {FIRST, SECOND}


def test_a_partition_that_is_assigned_again_is_read() -> None:
    consumer = member()
    consumer.pause([FIRST, SECOND])
    consumer._revoke(consumer._consumer, places())
    assert consumer.read_partitions == set()
    consumer._assign(consumer._consumer, places())
    assert consumer.read_partitions == {FIRST, SECOND}


def assigned_offsets(
    consumer: GroupConsumer, committed: dict[int, int], starts: dict[int, int]
) -> list[tuple[int, int]]:
    """Assign both partitions to a member without any; return the positions that it chose."""
    chosen: list[TopicPartition] = []
    client: Any = consumer._consumer
    client.committed = lambda found, timeout: [
        TopicPartition(one.topic, one.partition, committed.get(one.partition, OFFSET_INVALID))
        for one in found
    ]
    client.offsets_for_times = lambda found, timeout: [
        TopicPartition(one.topic, one.partition, starts.get(one.partition, OFFSET_INVALID))
        for one in found
    ]
    client.incremental_assign = chosen.extend
    consumer._revoke(client, places())
    consumer._assign(client, places())
    return sorted((one.partition, one.offset) for one in chosen)


@pytest.mark.parametrize(
    ("committed", "starts", "chosen"),
    [
        ({0: 7, 1: 9}, {}, [(0, 7), (1, 9)]),
        ({1: 9}, {0: 3}, [(0, 3), (1, 9)]),  # the oldest record, as `auto.offset.reset`
        ({1: 9}, {}, []),  # unknown: the client looks for it
    ],
    ids=["committed", "without a commit", "unknown"],
)
def test_a_member_without_partitions_starts_with_all_at_their_positions(
    committed: dict[int, int], starts: dict[int, int], chosen: list[tuple[int, int]]
) -> None:
    assert assigned_offsets(member(), committed, starts) == chosen


def test_further_partitions_are_left_to_the_client() -> None:
    """A request would wait behind the fetch of those that the member reads."""
    consumer = member()
    assert assigned_offsets(consumer, {0: 7, 1: 9}, {}) == [(0, 7), (1, 9)]
    consumer._consumer.committed = None
    consumer._assign(consumer._consumer, [TopicPartition("t.events", 2)])
    assert ("events", 2) in consumer.assigned
