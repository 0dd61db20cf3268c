"""Follows the copies of unreadable records, so that no offset passes one that may be lost.

While `dead_letters` is unavailable a copy waits in the producer, and with it the offset of its own
record. Records behind it are processed, and other partitions are committed. Above a memory limit
the owner reads nothing more of the partitions with further copies (`waiting_partitions`).
"""

import threading
from collections.abc import Collection, Mapping
from functools import partial
from itertools import count

from topics.clients.dead_letter_sender import DeadLetterSender
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordSender
from topics.records.received_record import ReceivedRecord


class DeadLetterCopies:
    """The unacknowledged copies of one consumer's records. Safe for threads."""

    def __init__(self, sender: RecordSender) -> None:
        self._sender = DeadLetterSender(sender)
        self._numbers = count()
        self._condition = threading.Condition()
        self._open: dict[int, tuple[Partition, int]] = {}  # partition and offset of the record
        self._failure: BaseException | None = None

    def send(self, received: ReceivedRecord, *, code: str) -> None:
        """Send a copy of a record whose decoding failed with `code`. Raises DeliveryError."""
        number = next(self._numbers)
        with self._condition:
            self._open[number] = (received.topic, received.partition), received.offset
        self._sender.send(received, code=code, on_delivery=partial(self._on_delivery, number))

    def send_waiting(self) -> None:
        """Send the copies for which there is space now. Raises DeliveryError."""
        self._sender.send_waiting()

    @property
    def waiting_partitions(self) -> frozenset[Partition]:
        """The partitions of which nothing more should be read: copies of them are not sent yet."""
        return self._sender.waiting_partitions

    def committable(self, next_offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offsets up to the first record without an acknowledged copy.

        Raises DeliveryError for a copy that failed for good.
        """
        offsets = dict(next_offsets)
        with self._condition:
            if self._failure is not None:
                raise self._failure
            for partition, offset in self._open.values():
                if partition in offsets:
                    offsets[partition] = min(offsets[partition], offset)
        return offsets

    def discard(self, partitions: Collection[Partition]) -> None:
        """Forget the copies of revoked partitions: their next owner sends them again."""
        self._sender.discard(partitions)
        with self._condition:
            self._open = {n: place for n, place in self._open.items() if place[0] not in partitions}
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for the acknowledgements, for at most `timeout_s`."""
        with self._condition:
            self._condition.wait_for(lambda: not self._open or self._failure, timeout_s)

    def _on_delivery(self, number: int, failure: BaseException | None) -> None:
        """Runs on the producer's thread. A copy that failed keeps its offset."""
        with self._condition:
            if failure is None:
                self._open.pop(number, None)
            self._failure = self._failure or failure
            self._condition.notify_all()
