"""Goal: a topic that has no leader for a moment fails no read of a range."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CONTROL
from topics.settings import KafkaSettings
from topics.tail_readers import offset_ranges
from topics.tail_readers.offset_ranges import OffsetRange, OffsetRangeReader

NO_LEADER = KafkaError(KafkaError._UNKNOWN_PARTITION, "no leader")
DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "denied")


class ScriptedConsumer:
    """Fails the first `failures` requests of each kind; requests for metadata are counted."""

    def __init__(self, failures: float, error: KafkaError) -> None:
        self.error, self.metadata_requests = error, 0
        self.to_raise = self.to_return = failures

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:
        self.to_raise -= 1
        if self.to_raise >= 0:
            raise KafkaException(self.error)
        return 3, 7

    def offsets_for_times(self, _places: object, timeout: float) -> list[object]:
        return [self._answer()]

    def committed(self, _places: object, timeout: float) -> list[object]:
        return [self._answer()]

    def list_topics(self, _name: str, timeout: float) -> object:
        self.metadata_requests += 1
        return SimpleNamespace(topics={})

    def _answer(self) -> object:
        """Return an answer whose error is not raised, as the client does for each partition."""
        self.to_return -= 1
        if self.to_return >= 0:
            return SimpleNamespace(partition=5, offset=-1001, error=self.error)
        return SimpleNamespace(partition=5, offset=4, error=None)


@pytest.fixture
def reader() -> Iterator[OffsetRangeReader]:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    reader = OffsetRangeReader(settings, CONTROL, client_id="test")
    real = reader._consumer
    yield reader
    real.close()


def script(
    reader: OffsetRangeReader, *, failures: float, error: KafkaError = NO_LEADER
) -> ScriptedConsumer:
    scripted = ScriptedConsumer(failures, error)
    consumer: Any = scripted
    reader._consumer = consumer
    return scripted


def test_a_request_is_sent_again_after_one_for_metadata(reader: OffsetRangeReader) -> None:
    scripted = script(reader, failures=2)
    assert reader.full_range(5) == OffsetRange(5, 3, 7)
    assert scripted.metadata_requests == 2


def test_a_partition_with_an_error_is_not_taken_for_an_empty_one(
    reader: OffsetRangeReader,
) -> None:
    script(reader, failures=2)
    assert reader.range_since(5, appended_ms=1) == OffsetRange(5, 4, 7)
    script(reader, failures=1)
    assert reader.committed_offsets([5]) == {5: 4}


def test_a_topic_without_a_leader_is_an_error_in_the_end(
    reader: OffsetRangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "_REQUEST_S", 0.1)
    script(reader, failures=float("inf"))
    with pytest.raises(KafkaUnavailableError, match="no leader"):
        reader.full_range(5)


def test_a_denied_request_is_not_sent_again(reader: OffsetRangeReader) -> None:
    scripted = script(reader, failures=1, error=DENIED)
    with pytest.raises(KafkaUnavailableError, match="denied"):
        reader.full_range(5)
    assert scripted.metadata_requests == 0
