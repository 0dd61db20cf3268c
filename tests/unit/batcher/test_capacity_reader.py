"""Goal: any failure of the capacity reader is reported."""

import threading

import pytest

from batcher.outbound import capacity_reader
from batcher.outbound.capacity_reader import CapacityReader
from topics.errors import KafkaUnavailableError
from topics.records.records import Capacity
from topics.settings import KafkaSettings


@pytest.mark.parametrize("failure", [KafkaUnavailableError("gone"), ZeroDivisionError()])
def test_failure_of_the_reader_is_reported(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Tail:
        def __init__(self, *_: object, **__: object) -> None: ...

        def seek_to_end(self, timeout_s: float) -> None: ...

        def poll(self, timeout_s: float) -> list[object]:
            raise failure

        def close(self) -> None: ...

    told: list[BaseException] = []
    has_ended = threading.Event()

    def on_failure(failure: BaseException) -> None:
        told.append(failure)
        has_ended.set()

    def deliver(_: list[Capacity]) -> None: ...

    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    monkeypatch.setattr(capacity_reader, "TopicTailReader", Tail)
    feed = CapacityReader(kafka, client_id="t", on_capacity=deliver, on_failure=on_failure)
    feed.start(1.0)
    assert has_ended.wait(5)
    feed.stop()
    assert told == [failure]
