"""Goal: a transaction that waits for the broker is never silent for as long as a frozen one."""

from typing import Any

import pytest

from jobs.store.transaction_keepalive import IDLE_S_MAX, flush_with_keepalive
from topics.errors import DeliveryError, DeliveryPendingError


class Waits:
    """A producer and a connection that note what happens to them."""

    def __init__(self, *failures: DeliveryError) -> None:
        self._failures = list(failures)
        self.silent_s = [0.0]

    def flush(self, timeout_s: float) -> None:
        self.silent_s[-1] += timeout_s
        if self._failures:
            raise self._failures.pop(0)

    def execute(self, _statement: object) -> None:
        self.silent_s.append(0.0)


def flushed(waits: Any) -> None:
    flush_with_keepalive(waits, waits)


def test_a_long_wait_shows_life() -> None:
    waits = Waits(DeliveryPendingError(), DeliveryPendingError(), DeliveryPendingError())
    flushed(waits)
    assert sum(waits.silent_s) > IDLE_S_MAX > 1.5 * max(waits.silent_s)


def test_a_record_that_failed_ends_the_wait() -> None:
    with pytest.raises(DeliveryError, match="gone"):
        flushed(Waits(DeliveryPendingError(), DeliveryError("gone")))
