"""Goal: a broker that does not answer about a group is reported as unavailable."""

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from topics.clients import group_offsets
from topics.clients.group_offsets import GroupOffsets
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings


class SilentClient:
    """Never completes a request, not even with a timeout."""

    def describe_consumer_groups(self, names: list[str], **_: object) -> dict[str, Future[Any]]:
        return {name: Future() for name in names}

    def alter_consumer_group_offsets(
        self, requests: list[ConsumerGroupTopicPartitions], **_: object
    ) -> dict[str, Future[Any]]:
        return {request.group_id: Future() for request in requests}


def test_a_broker_without_response_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets, "_REQUEST_TIMEOUT_S", 0.01)
    group = GroupOffsets(KafkaSettings(bootstrap_servers="127.0.0.1:1"), "writers")
    group._client = SilentClient()
    with pytest.raises(KafkaUnavailableError, match="no answer"):
        group.member_count()
    with pytest.raises(KafkaUnavailableError, match="no answer"):
        group.alter_offsets(RESULTS, {0: 1})
