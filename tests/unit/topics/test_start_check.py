"""Goal: a role starts on no topic that would lose its records, and names every other difference."""

import logging
from collections.abc import Sequence
from typing import cast

import pytest

from topics.clients import start_check
from topics.clients.admin import TopicAdmin
from topics.clients.start_check import OFFSETS_RETENTION_MINUTES, check_topics, topics_of_role
from topics.clients.topic_drift import (
    TopicDifference,
    missing_topic,
    option_differences,
    partition_difference,
)
from topics.errors import KafkaUnavailableError, TopicDriftError
from topics.records.catalogue import ATTEMPTS, RESULTS, Topic


class Broker:
    """Reports scripted differences, one list for each comparison; the last one stays."""

    def __init__(
        self, *reports: list[TopicDifference], offsets: int | None = OFFSETS_RETENTION_MINUTES
    ) -> None:
        self.reports, self.offsets = list(reports), offsets

    def wait_for_broker(self, timeout_s: float) -> None:
        """Answer at once."""

    def differences(self, topics: Sequence[Topic]) -> list[TopicDifference]:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]

    def offsets_retention_minutes(self) -> int | None:
        return self.offsets


class SecretiveBroker(Broker):
    """Denies the right to read configurations."""

    def differences(self, topics: Sequence[Topic]) -> list[TopicDifference]:
        raise KafkaUnavailableError("denied")


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_check, "_RETRY_S", 0.0)


def check(broker: Broker) -> None:
    check_topics(cast(TopicAdmin, broker), [RESULTS], broker_wait_s=1)


def results_with(**options: str) -> list[TopicDifference]:
    wanted = RESULTS.configuration(min_insync_replicas=1)
    named = {name.replace("_", "."): value for name, value in options.items()}
    return list(option_differences("results", wanted | named, wanted))


@pytest.mark.parametrize(
    "wrong",
    [
        [*partition_difference("results", 9, RESULTS)],
        results_with(retention_ms="3600000"),
        results_with(max_message_bytes="1000"),
        results_with(cleanup_policy="compact,delete"),
    ],
)
def test_a_role_refuses_topics_that_lose_its_records(wrong: list[TopicDifference]) -> None:
    with pytest.raises(TopicDriftError, match=r"results: .*millrace topics check"):
        check(Broker([*wrong, TopicDifference("results", "harmless")]))


@pytest.mark.parametrize(
    "other",
    [
        results_with(retention_ms="-1"),
        results_with(retention_ms="9" * 15),
        results_with(max_message_bytes="9" * 8),
        results_with(min_insync_replicas="2"),
    ],
)
def test_other_differences_are_logged(
    other: list[TopicDifference], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        check(Broker(other))
    (record,) = caplog.records
    assert record.message == "a topic differs from the catalogue"
    assert record.__dict__["difference"] == other[0].text


def test_missing_topics_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [missing_topic("results")]
    check(Broker(missing, missing, []))
    monkeypatch.setattr(start_check, "CREATION_S_MAX", 0.0)
    with pytest.raises(TopicDriftError, match=r"results: missing.*millrace topics create"):
        check(Broker(missing))


def test_offsets_that_expire_early_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    for minutes in (None, OFFSETS_RETENTION_MINUTES):
        check(Broker([], offsets=minutes))
    assert not caplog.records
    check(Broker([], offsets=10_080))
    (record,) = caplog.records
    assert record.__dict__["offsets.retention.minutes"] == 10_080


def test_a_role_without_the_right_to_read_configurations_starts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    check(SecretiveBroker([]))
    assert [record.message for record in caplog.records] == ["topics were not checked"]


def test_a_role_checks_the_topics_that_it_writes_or_reads() -> None:
    assert ATTEMPTS in topics_of_role("gpu-consumer")
    assert [topic.name for topic in topics_of_role("results-writer")] == ["results", "dead_letters"]
    for role in ("api", "intake", "batcher", "webhooks"):
        assert topics_of_role(role)
