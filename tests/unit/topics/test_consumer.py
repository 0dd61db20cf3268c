"""Goal: a member knows which of its partitions it reads."""

from types import SimpleNamespace
from typing import Any

from confluent_kafka import TopicPartition

from topics.clients.consumer import GroupConsumer
from topics.settings import KafkaSettings

FIRST, SECOND = ("events", 0), ("events", 1)


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
        consume=lambda *_: [],
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


def test_a_member_joins_again_once_its_partitions_are_revoked() -> None:
    consumer = member()
    calls: list[str] = []
    consumer._consumer.unsubscribe = lambda: calls.append("leave")
    consumer._consumer.subscribe = lambda *_, **__: calls.append("join")
    consumer.rejoin()
    consumer.poll(1, 0)  # the group still rebalances: a subscription would undo the departure
    assert calls == ["leave"]
    consumer._revoke(consumer._consumer, places())
    consumer.poll(1, 0)
    consumer.poll(1, 0)
    assert calls == ["leave", "join"]
