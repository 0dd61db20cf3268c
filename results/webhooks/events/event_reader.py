"""Reads job events from the log into webhook messages; commits an offset after its rows."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import RecordUnreadableError
from results.webhooks.events.message_recording import record_events
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_copies import DeadLetterCopies
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordSender
from topics.errors import StaleMemberError
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobEvent

LOG = logging.getLogger(__name__)

GROUP: Final = "webhooks"
_POLL_RECORDS_MAX: Final = 500
_POLL_S: Final = 0.5  # how soon a stop is noticed


@dataclass(slots=True)
class JobEventReader:
    """One member of the consumer group; its methods run in one thread."""

    engine: sa.Engine
    consumer: GroupConsumer
    producer: RecordSender
    on_deliveries: Callable[[], None]  # wakes the deliverer
    _polled: list[ReceivedRecord] = field(default_factory=list)  # not yet recorded
    _events: list[JobEvent] = field(default_factory=list)  # decoded from `_polled`
    _finished: dict[Partition, int] = field(default_factory=dict)  # recorded: next offsets
    _committed: dict[Partition, int] = field(default_factory=dict)
    _paused: frozenset[Partition] = frozenset()
    _copies: DeadLetterCopies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = DeadLetterCopies(self.producer)

    def run_once(self) -> None:
        """1. Poll. 2. Record messages in one transaction. 3. Commit the offsets.

        A crash between 2 and 3 repeats records, which adds nothing. The offset of an unreadable
        record waits for the acknowledgement of its dead letter; too many bytes of those pause its
        partition. Raises one of DATABASE_UNAVAILABLE and keeps the records for the next run;
        SchemaTooNewError, KafkaUnavailableError, DeliveryError.
        """
        if not self._polled:
            self._pause_full_partitions()
            self._polled = self.consumer.poll(_POLL_RECORDS_MAX, _POLL_S)
            # Decoded once: every repeated attempt at Postgres would send the dead letters again.
            self._events = [event for record in self._polled if (event := self._decode(record))]
        if self._polled:
            self._record_polled()
        self._commit()

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Forget the offsets of revoked partitions. The consumer calls this in a poll."""
        for partition in partitions:
            self._finished.pop(partition, None)
            self._committed.pop(partition, None)
        self._copies.discard(partitions)
        self._paused -= set(partitions)  # the client assigns them without the pause

    def _pause_full_partitions(self) -> None:
        """Read no partition of which dead letters are not sent, and all others."""
        self._copies.send_waiting()
        waiting = self._copies.waiting_partitions
        if pause := waiting - self._paused:
            self.consumer.pause(pause)
        if resume := self._paused - waiting:
            self.consumer.resume(resume)
        self._paused = waiting

    def _record_polled(self) -> None:
        with self.engine.begin() as connection:
            count = record_events(connection, self._events)
        if count:
            self.on_deliveries()
        self._finished |= {
            (record.topic, record.partition): record.offset + 1 for record in self._polled
        }
        self._polled = []

    def _decode(self, received: ReceivedRecord) -> JobEvent | None:
        try:
            return decode(JobEvent, received.value, received.headers)
        except RecordUnreadableError as error:
            place = (received.topic, received.partition, received.offset)
            LOG.error("record unreadable", extra={"place": place, "reason": str(error)})  # noqa: TRY400  the cause may quote the value
            self._copies.send(received, code=error.code)
            return None

    def _commit(self) -> None:
        offsets = dict(self._copies.committable(self._finished).items() - self._committed.items())
        if not offsets:
            return
        try:
            if self.consumer.commit(offsets):
                self._committed |= offsets
        except StaleMemberError:
            LOG.warning("the group goes on without this member")
