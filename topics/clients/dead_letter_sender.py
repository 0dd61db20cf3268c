"""Sends copies of unreadable records to `dead_letters`, within a memory limit.

No copy is lost: while `dead_letters` is unavailable, copies up to the limit wait in the producer
and later ones here. The owner then pauses the partitions of those later ones and reads all others.
The log keeps what is not read, so the limit bounds memory without a loss.
"""

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received_record import ReceivedRecord

COPIES_BYTES_MAX: Final = 4 * 1024 * 1024
"""Unacknowledged copies of one reader, a sixteenth of the producer's queue; one may exceed it."""

_RECORD_OVERHEAD_BYTES: Final = 1024  # bounds the number of empty records


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that is not sent yet."""

    received: ReceivedRecord
    code: str
    on_delivery: OnDelivery

    @property
    def partition(self) -> Partition:
        return self.received.topic, self.received.partition


class DeadLetterSender:
    """The copies of one reader. Its owner calls it from one thread, besides the callbacks."""

    def __init__(self, sender: RecordSender, *, bytes_max: int = COPIES_BYTES_MAX) -> None:
        """Send with `sender`."""
        self._sender, self._bytes_max = sender, bytes_max
        self._lock = threading.Lock()
        self._byte_count = 0  # of the copies that are sent and not acknowledged
        self._waiting: deque[_Copy] = deque()

    def send(self, received: ReceivedRecord, *, code: str, on_delivery: OnDelivery) -> None:
        """Send a copy of a record whose decoding failed with `code`, now or when there is space.

        `on_delivery` is called in the producer's thread. Raises DeliveryError.
        """
        self._waiting.append(_Copy(received, code, on_delivery))
        self.send_waiting()

    def send_waiting(self) -> None:
        """Send the copies for which there is space now. Call it periodically.

        Raises DeliveryError.
        """
        while self._waiting and self._byte_count < self._bytes_max:
            copy = self._waiting.popleft()
            byte_count = _RECORD_OVERHEAD_BYTES + len(copy.received.value or b"")
            with self._lock:
                self._byte_count += byte_count
            send_dead_letter(
                self._sender,
                copy.received,
                code=copy.code,
                on_delivery=partial(self._on_delivery, byte_count, copy.on_delivery),
            )

    @property
    def waiting_partitions(self) -> frozenset[Partition]:
        """The partitions with copies that are not sent yet: read nothing more of them."""
        return frozenset(copy.partition for copy in self._waiting)

    def discard(self, partitions: Collection[Partition]) -> None:
        """Drop the unsent copies of revoked partitions: their next owner sends them."""
        if self._waiting:
            kept = (copy for copy in self._waiting if copy.partition not in partitions)
            self._waiting = deque(kept)

    def _on_delivery(
        self, byte_count: int, on_delivery: OnDelivery, failure: BaseException | None
    ) -> None:
        with self._lock:
            self._byte_count -= byte_count
        on_delivery(failure)
