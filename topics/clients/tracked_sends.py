"""Follows the acknowledgements of one owner's records, such as a job's or those of one row."""

import threading
import time
from typing import Final

from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery, PartitionSender
from topics.records.codec import Headers

WAIT_S_MAX: Final = 30.0
"""Longest wait for partitions that acknowledge some records, but not all of them."""

_CHECK_S: Final = 0.1  # between two looks whether a partition is unavailable


class TrackedSends:
    """A sender whose records can be awaited apart from those of others. Safe for threads."""

    def __init__(self, sender: PartitionSender) -> None:
        self._sender = sender
        self._places: set[Partition] = set()
        self._condition = threading.Condition()
        self._open = 0
        self._failure: BaseException | None = None

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Queue a record. Raises DeliveryError."""

        def report(failure: BaseException | None) -> None:
            if on_delivery is not None:
                on_delivery(failure)
            with self._condition:
                self._open -= 1
                self._failure = self._failure or failure
                self._condition.notify_all()

        with self._condition:
            self._open += 1
            self._places.add((topic, partition))
        self._sender.send(
            topic, value, partition=partition, key=key, headers=headers, on_delivery=report
        )

    @property
    def is_acknowledged(self) -> bool:
        """Whether all records are acknowledged. Raises DeliveryError."""
        return self.wait(0.0)

    def wait_unless_unavailable(self) -> bool:
        """Wait for the acknowledgements; return False when a partition is unavailable.

        What is not acknowledged then stays in the sender's queue. Raises DeliveryError.
        """
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not self.wait(_CHECK_S):
            if time.monotonic() > deadline_s or any(
                self._sender.is_unavailable(*place) for place in self._places
            ):
                return False
        return True

    def wait(self, timeout_s: float) -> bool:
        """Wait for the acknowledgements; return whether all came. Raises DeliveryError."""
        with self._condition:
            self._condition.wait_for(lambda: not self._open or self._failure, timeout_s)
            if self._failure is not None:
                raise self._failure
            return not self._open
