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

NO_LEADER = KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, "no leader"))


class ScriptedConsumer:
    """Fails its first `failures` requests for offsets; each look at the metadata is counted."""

    def __init__(self, failures: float) -> None:
        self.failures, self.looks = failures, 0

    def get_watermark_offsets(self, _place: object, timeout: float) -> tuple[int, int]:
        self.failures -= 1
        if self.failures >= 0:
            raise NO_LEADER
        return 3, 7

    def list_topics(self, _name: str, timeout: float) -> object:
        self.looks += 1
        return SimpleNamespace(topics={})


@pytest.fixture
def reader() -> Iterator[OffsetRangeReader]:
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    reader = OffsetRangeReader(settings, CONTROL, client_id="test")
    real = reader._consumer
    yield reader
    real.close()


def script(reader: OffsetRangeReader, *, failures: float) -> ScriptedConsumer:
    scripted = ScriptedConsumer(failures)
    consumer: Any = scripted
    reader._consumer = consumer
    return scripted


def test_a_request_is_sent_again_after_a_look_at_the_metadata(reader: OffsetRangeReader) -> None:
    consumer = script(reader, failures=2)
    assert reader.full_range(5) == OffsetRange(5, 3, 7)
    assert consumer.looks == 2


def test_a_topic_without_a_leader_is_an_error_in_the_end(
    reader: OffsetRangeReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offset_ranges, "_REQUEST_S", 0.1)
    script(reader, failures=float("inf"))
    with pytest.raises(KafkaUnavailableError, match="no leader"):
        reader.full_range(5)
