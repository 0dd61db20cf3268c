"""Goal: operators see a replica that loads or refuses its model, and nothing counts it."""

import threading
from typing import Any

import pytest

from gpu_consumers.flow_control import loading_state
from gpu_consumers.flow_control.loading_state import LoadingState
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from tests.support.until import until
from tests.unit.gpu_consumers.fakes import RecordingProducer
from topics.errors import DeliveryPendingError
from topics.records.eligibility import is_starting
from topics.records.records import LoadedModel


class FlushedProducer(RecordingProducer):
    """Counts what was sent before each flush, which may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed: list[int] = []
        self.is_away = False
        self.failures = 0  # of the next records

    def send(self, *args: Any, **kwargs: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise DeliveryPendingError
        super().send(*args, **kwargs)

    def flush(self, timeout_s: float | None = None) -> None:
        self.flushed.append(len(self.capacities))
        if self.is_away:
            raise DeliveryPendingError


def state(producer: FlushedProducer) -> LoadingState:
    return LoadingState(producer, "r1", "p", ("bulk", "interactive"), "v1")


async def test_loading_is_published_before_anything_blocks() -> None:
    producer = FlushedProducer()
    async with state(producer).published():
        assert len(producer.capacities) == 2
        assert producer.flushed == []  # the load does not wait for the acknowledgement
    assert [one.job_class for one in producer.capacities] == ["bulk", "interactive"]
    for one in producer.capacities:
        assert one.models == [LoadedModel("v1", "loading")]
        assert is_starting(one)
        assert (one.available, one.partitions, one.granted, one.epoch) == (False, [], {}, 0)


async def test_the_state_is_repeated_while_the_event_loop_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading_state, "REPEAT_S", 0.001)
    producer = FlushedProducer()
    async with state(producer).published():
        until(lambda: len(producer.capacities) >= 6, timeout_s=10.0)  # blocks, as vLLM does
    assert "loading-state" not in {thread.name for thread in threading.enumerate()}
    assert len(producer.capacities) % 2 == 0  # those of both classes, to the last


async def test_a_failed_delivery_does_not_end_the_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading_state, "REPEAT_S", 0.001)
    producer = FlushedProducer()
    producer.failures = 3
    async with state(producer).published():
        until(lambda: len(producer.capacities) >= 2, timeout_s=10.0)
    assert producer.failures == 0


async def test_a_refusal_is_published_at_once_and_a_broker_that_is_away_ends_nothing() -> None:
    producer = FlushedProducer()
    producer.is_away = True
    loading = state(producer)
    async with loading.published():
        loading.refuse(ModelRefusedError(RefusalReason.SIGNATURE, "the key does not fit"))
    assert [one.models[0].state for one in producer.capacities] == [
        *["loading"] * 2,
        *["refused"] * 2,
    ]
    assert [one.models[0].reason for one in producer.capacities] == ["", "", *["signature"] * 2]
    assert producer.flushed == [4]
