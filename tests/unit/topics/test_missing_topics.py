"""Goal: a member looks for its topics until all exist, and fails for one that stays missing."""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message

from topics.clients import missing_topics
from topics.clients.missing_topics import MissingTopicMonitor
from topics.errors import KafkaUnavailableError

UNKNOWN = KafkaError.UNKNOWN_TOPIC_OR_PART
NAMES = ("a", "b")


class Cluster:
    """Answers requests for metadata, and records the names that were asked for; None for all."""

    def __init__(self, **errors: int) -> None:
        self.errors, self.asked = errors, list[str | None]()
        self.listed: Collection[str] = NAMES
        self.answers = True

    def list_topics(self, name: str | None = None, *, timeout: float) -> Any:
        assert timeout > 0
        self.asked.append(name)
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if name is None:
            return SimpleNamespace(topics=dict.fromkeys(self.listed))
        error = KafkaError(self.errors[name]) if name in self.errors else None
        return SimpleNamespace(topics={name: SimpleNamespace(error=error)})


@pytest.fixture
def pass_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now_s = [0.0]
    monkeypatch.setattr(missing_topics, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    def advance(seconds: float) -> None:
        now_s[0] += seconds

    return advance


def monitor(cluster: Cluster, *, has_error_events: bool) -> MissingTopicMonitor:
    consumer = cast(Consumer, cluster)
    return MissingTopicMonitor(consumer, NAMES, has_error_events=has_error_events)


def unknown_topic() -> Message:
    return cast(Message, SimpleNamespace(error=lambda: KafkaError(UNKNOWN)))


def test_a_member_of_the_consumer_protocol_asks_by_name_until_all_exist(
    pass_s: Callable[[float], None],
) -> None:
    cluster = Cluster(b=UNKNOWN)
    topics = monitor(cluster, has_error_events=False)
    topics.check(())
    topics.check(())
    assert cluster.asked == ["a", "b"], "within half a second it asks once"
    del cluster.errors["b"]
    for _ in range(3):
        pass_s(1)
        topics.check(())
    assert cluster.asked == ["a", "b"] * 2


def test_a_member_of_the_classic_protocol_lists_all_topics_once_its_own_exist(
    pass_s: Callable[[float], None],
) -> None:
    cluster = Cluster(a=UNKNOWN)
    topics = monitor(cluster, has_error_events=True)
    topics.check(())
    assert not cluster.asked
    topics.check([unknown_topic()])
    assert cluster.asked == ["a", "b"]
    cluster.errors.clear()
    for listed in ("a", NAMES, NAMES):  # the first broker does not know the other topic yet
        cluster.listed = listed
        pass_s(1)
        topics.check(())
    assert cluster.asked == ["a", "b", *["a", "b", None] * 2]


@pytest.mark.parametrize("code", [UNKNOWN, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_topic_that_stays_missing_is_named(pass_s: Callable[[float], None], code: int) -> None:
    topics = monitor(Cluster(b=code), has_error_events=False)
    topics.check(())
    pass_s(missing_topics.MISSING_TOPIC_S_MAX + 1)
    with pytest.raises(KafkaUnavailableError, match="topic b does not exist, or"):
        topics.check(())


def test_a_topic_without_a_leader_exists(pass_s: Callable[[float], None]) -> None:
    cluster = Cluster(a=KafkaError.LEADER_NOT_AVAILABLE)
    topics = monitor(cluster, has_error_events=False)
    topics.check(())
    pass_s(1)
    topics.check(())
    assert cluster.asked == ["a", "b"]


def test_a_broker_that_does_not_answer_is_asked_again(pass_s: Callable[[float], None]) -> None:
    cluster = Cluster()
    topics = monitor(cluster, has_error_events=False)
    cluster.answers = False
    topics.check(())
    pass_s(missing_topics.MISSING_TOPIC_S_MAX + 1)
    topics.check(())
    assert cluster.asked == ["a", "a"]
