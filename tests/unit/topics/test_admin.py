"""Goal: requests for a topic that a broker does not know yet are retried for a bounded time."""

import gc
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka.admin import ConfigResource, NewTopic

from topics.clients import admin as admins
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings


class ForgetfulCluster:
    """Knows the topic, but one of its brokers does so only after `refusals` requests."""

    def __init__(self, refusals: int, code: int = KafkaError.UNKNOWN_TOPIC_OR_PART) -> None:
        self.refusals, self.code = refusals, code
        self.copies = [1] * RESULTS.partition_count
        self.leaders: list[int | None] = [0]  # at each listing; the last one stays
        self.listings = 0
        self.behind = 0  # listings without the topic
        self.absence = KafkaError.UNKNOWN_TOPIC_OR_PART
        self.unknown: set[str] = set()  # options

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, Future[SimpleNamespace]]:
        described: Future[SimpleNamespace] = Future()
        if self.behind:
            self.behind -= 1
            described.set_exception(KafkaException(KafkaError(self.absence)))
            return {"results": described}
        leader = self.leaders[min(self.listings, len(self.leaders) - 1)]
        self.listings += 1
        partitions = [
            SimpleNamespace(replicas=list(range(count)), leader=leader) for count in self.copies
        ]
        described.set_result(SimpleNamespace(partitions=partitions))
        return {"results": described}

    def create_topics(
        self, topics: Sequence[NewTopic], operation_timeout: float
    ) -> dict[str, Future[None]]:
        created: Future[None] = Future()
        created.set_result(None)
        return {topic.topic: created for topic in topics}

    def describe_configs(
        self, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, Future[dict[str, SimpleNamespace]]]:
        answers = {}
        for resource in resources:
            answer: Future[dict[str, SimpleNamespace]] = Future()
            if self.refusals:
                self.refusals -= 1
                answer.set_exception(KafkaException(KafkaError(self.code)))
            else:
                options = RESULTS.configuration(min_insync_replicas=1)
                known = options.keys() - self.unknown
                answer.set_result({n: SimpleNamespace(value=options[n]) for n in known})
            answers[resource] = answer
        return answers


class SilentCluster(ForgetfulCluster):
    """Lists its topics and answers no other request, not even with a timeout."""

    def create_topics(
        self, topics: Sequence[NewTopic], operation_timeout: float
    ) -> dict[str, Future[None]]:
        return {topic.topic: Future() for topic in topics}

    def describe_configs(
        self, resources: Sequence[ConfigResource]
    ) -> dict[ConfigResource, Future[dict[str, SimpleNamespace]]]:
        return {resource: Future() for resource in resources}

    def describe_consumer_groups(self, names: list[str], **_: object) -> dict[str, Future[None]]:
        return {name: Future() for name in names}

    def alter_consumer_group_offsets(
        self, requests: list[ConsumerGroupTopicPartitions], **_: object
    ) -> dict[str, Future[None]]:
        return {request.group_id: Future() for request in requests}


class LostCluster(ForgetfulCluster):
    """Creates topics and is then unavailable."""

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float
    ) -> dict[str, Future[SimpleNamespace]]:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def admin_of(cluster: ForgetfulCluster, replication_factor: int = 1) -> TopicAdmin:
    admin = TopicAdmin(
        KafkaSettings(bootstrap_servers="127.0.0.1:1", replication_factor=replication_factor)
    )
    admin._client = cluster
    return admin


def test_a_late_broker_is_waited_for_after_a_creation_only() -> None:
    assert admin_of(ForgetfulCluster(refusals=3)).drift([RESULTS]) == []
    cluster = ForgetfulCluster(refusals=0)
    admin = admin_of(cluster)
    admin.create([RESULTS])
    cluster.behind = 3
    assert admin.drift([RESULTS]) == []
    cluster.behind = 1
    assert admin_of(cluster).drift([RESULTS]) == ["results: missing"]


def test_a_topic_that_may_not_be_seen_is_missing() -> None:
    cluster = ForgetfulCluster(refusals=0)
    cluster.behind, cluster.absence = 1, KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert admin_of(cluster).drift([RESULTS]) == ["results: missing"]
    cluster.behind, cluster.absence = 1, KafkaError.CLUSTER_AUTHORIZATION_FAILED
    with pytest.raises(KafkaUnavailableError):
        admin_of(cluster).drift([RESULTS])


def test_answers_that_a_caller_expects_keep_no_client_alive() -> None:
    cluster = ForgetfulCluster(refusals=1)
    cluster.behind = 1
    kept = weakref.ref(cluster)
    gc.disable()
    try:
        admin = admin_of(cluster)
        assert admin.drift([RESULTS]) == ["results: missing"]
        assert admin.drift([RESULTS]) == []
        del admin, cluster
        assert kept() is None
    finally:
        gc.enable()


def test_a_topic_that_stays_unknown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admins, "REQUEST_TIMEOUT_S", 0.1)
    with pytest.raises(KafkaUnavailableError):
        admin_of(ForgetfulCluster(refusals=1000)).drift([RESULTS])


def test_other_refusals_are_not_retried() -> None:
    cluster = ForgetfulCluster(1000, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaUnavailableError):
        admin_of(cluster).drift([RESULTS])
    assert cluster.refusals == 999


def test_too_few_replicas_and_unknown_options_are_drift() -> None:
    cluster = ForgetfulCluster(refusals=0)
    cluster.copies[3:] = [3] * (RESULTS.partition_count - 3)
    cluster.unknown = {"retention.ms"}

    replicas, option = admin_of(cluster, replication_factor=3).drift([RESULTS])
    assert replicas == "results: replication factor 1, MILLRACE_KAFKA_REPLICATION_FACTOR is 3"
    assert option.startswith("results: retention.ms is None, the catalogue says ")


@pytest.mark.parametrize(
    "act",
    [
        lambda admin: admin.create([RESULTS]),
        lambda admin: admin.drift([RESULTS]),
        lambda admin: admin.member_count("writers"),
        lambda admin: admin.alter_offsets("writers", RESULTS, {0: 1}),
    ],
)
def test_a_timeout_names_the_address_and_its_setting(
    act: Callable[[TopicAdmin], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admins, "REQUEST_TIMEOUT_S", 0.1)
    message = r"127\.0\.0\.1:1 \(MILLRACE_KAFKA_BOOTSTRAP_SERVERS\): no answer within 0\.1 s"
    with pytest.raises(KafkaUnavailableError, match=message):
        act(admin_of(SilentCluster(refusals=0)))


def test_a_broker_lost_after_the_creation_is_named() -> None:
    with pytest.raises(KafkaUnavailableError, match=r"127\.0\.0\.1:1 .*transport failure"):
        admin_of(LostCluster(refusals=0)).create([RESULTS])


def test_create_waits_for_leaders_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("topics.clients.admin.time.sleep", pauses.append)
    cluster = ForgetfulCluster(refusals=0)
    cluster.leaders = [None, None, 0]

    assert admin_of(cluster).create([RESULTS]) == ["results"]
    assert (cluster.listings, len(pauses)) == (3, 2)
