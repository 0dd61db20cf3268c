"""Goal: a tail reader returns every record that it has read, and raises fatal errors."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from topics.errors import KafkaUnavailableError
from topics.records.catalogue import CONTROL
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader


def message(offset: int = 0, error: int | None = None) -> Any:
    values: dict[str, object] = {
        "error": None if error is None else KafkaError(error),
        "topic": "control",
        "partition": 0,
        "offset": offset,
        "key": b"k",
        "headers": [],
        "value": b"v",
        "timestamp": (1, 2),
    }
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


class ScriptedConsumer:
    """Returns one batch, then nothing."""

    def __init__(self, batch: Sequence[Any]) -> None:
        self._left = list(batch)

    def consume(self, count: int, _timeout_s: float) -> list[Any]:
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def assign(self, _places: object) -> None:
        pass


def tail_of(monkeypatch: pytest.MonkeyPatch, *batch: Any) -> TopicTailReader:
    monkeypatch.setattr(
        "topics.tail_readers.topic_tail_reader.Consumer", lambda *_, **__: ScriptedConsumer(batch)
    )
    return TopicTailReader(KafkaSettings(bootstrap_servers="nobody:1"), CONTROL, client_id="test")


def test_records_before_a_missing_topic_error_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = message(error=KafkaError.UNKNOWN_TOPIC_OR_PART)
    tail = tail_of(monkeypatch, message(7), lost, message(8))

    assert [record.offset for record in tail.poll(0)] == [7, 8]
    with pytest.raises(KafkaUnavailableError):
        tail.poll(0)
    assert tail.poll(0) == []


@pytest.mark.parametrize(
    "code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED]
)
def test_an_authorization_error_is_raised(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with pytest.raises(KafkaUnavailableError):
        tail_of(monkeypatch, message(error=code)).poll(0)
