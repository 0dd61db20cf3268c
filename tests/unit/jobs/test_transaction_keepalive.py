"""Goal: a transaction that recorder for the broker is never idle as long as a frozen process."""

from typing import Any

import pytest

from jobs.store.transaction_keepalive import IDLE_S_MAX, flush_with_keepalive
from topics.errors import DeliveryError, DeliveryPendingError


class Recorder:
    """A producer and a connection in one; records the time between two statements."""

    def __init__(self, *failures: DeliveryError) -> None:
        self._failures = list(failures)
        self.idle_s = [0.0]

    def flush(self, timeout_s: float) -> None:
        self.idle_s[-1] += timeout_s
        if self._failures:
            raise self._failures.pop(0)

    def execute(self, _statement: object) -> None:
        self.idle_s.append(0.0)


def flushed(recorder: Any) -> None:
    flush_with_keepalive(recorder, recorder)


def test_a_long_flush_sends_keepalives() -> None:
    recorder = Recorder(DeliveryPendingError(), DeliveryPendingError(), DeliveryPendingError())
    flushed(recorder)
    assert sum(recorder.idle_s) > IDLE_S_MAX > 1.5 * max(recorder.idle_s)


def test_a_failed_record_ends_the_flush() -> None:
    with pytest.raises(DeliveryError, match="gone"):
        flushed(Recorder(DeliveryPendingError(), DeliveryError("gone")))
