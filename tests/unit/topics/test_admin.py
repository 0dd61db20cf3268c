"""Goal: a topic that a broker does not know yet is asked for again, for a bounded time."""

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import ConfigResource

from topics import admin as admins
from topics.admin import LogAdmin
from topics.catalogue import RESULTS
from topics.errors import LogUnavailableError
from topics.settings import KafkaSettings


class ForgetfulCluster:
    """Knows the topic, but one of its brokers learns of it only after `refusals` questions."""

    def __init__(self, refusals: int, code: int = KafkaError.UNKNOWN_TOPIC_OR_PART) -> None:
        self.refusals, self.code = refusals, code

    def list_topics(self, timeout: float) -> SimpleNamespace:
        partitions = dict.fromkeys(range(RESULTS.partition_count))
        return SimpleNamespace(topics={"results": SimpleNamespace(partitions=partitions)})

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
                answer.set_result({n: SimpleNamespace(value=v) for n, v in options.items()})
            answers[resource] = answer
        return answers


def admin_of(cluster: ForgetfulCluster) -> LogAdmin:
    admin = LogAdmin(KafkaSettings(bootstrap_servers="127.0.0.1:1"))
    admin._client = cluster
    return admin


def test_a_broker_may_learn_of_a_topic_late() -> None:
    assert admin_of(ForgetfulCluster(refusals=3)).drift([RESULTS]) == []


def test_a_topic_that_stays_unknown_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admins, "REQUEST_TIMEOUT_S", 0.1)
    with pytest.raises(LogUnavailableError):
        admin_of(ForgetfulCluster(refusals=1000)).drift([RESULTS])


def test_any_other_refusal_is_an_error_at_once() -> None:
    cluster = ForgetfulCluster(1000, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(LogUnavailableError):
        admin_of(cluster).drift([RESULTS])
    assert cluster.refusals == 999
