"""Reads job events from the log into webhook messages; commits an offset after its rows."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import RecordUnreadableError
from results.webhooks.events.message_recording import record_events
from topics.clients.consumer import GroupConsumer
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordProducer
from topics.errors import StaleMemberError
from topics.records.codec import decode
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobEvent

LOG = logging.getLogger(__name__)

GROUP: Final = "webhooks"
_POLL_RECORDS_MAX: Final = 500
_POLL_S: Final = 0.5  # how soon a stop is noticed
_FLUSH_S: Final = 30.0


@dataclass(slots=True)
class JobEventReader:
    """One member of the consumer group; its methods run in one thread."""

    engine: sa.Engine
    consumer: GroupConsumer
    producer: RecordProducer
    on_deliveries: Callable[[], None]  # wakes the deliverer
    _polled: list[ReceivedRecord] = field(default_factory=list)  # not yet recorded
    _events: list[JobEvent] = field(default_factory=list)  # decoded from `_polled`

    def run_once(self) -> None:
        """1. Poll. 2. Record messages in one transaction. 3. Commit the offsets.

        A crash between 2 and 3 repeats records, which adds nothing. Raises one of
        DATABASE_UNAVAILABLE and keeps the records for the next run; SchemaTooNewError,
        KafkaUnavailableError, DeliveryError.
        """
        if not self._polled:
            self._polled = self.consumer.poll(_POLL_RECORDS_MAX, _POLL_S)
            # Decoded once: every repeated attempt at Postgres would send the dead letters again.
            self._events = [event for record in self._polled if (event := self._decode(record))]
        if not self._polled:
            return
        with self.engine.begin() as connection:
            count = record_events(connection, self._events)
        if count:
            self.on_deliveries()
        self.producer.flush(_FLUSH_S)  # dead letters must be durable before offsets pass them
        self._commit()

    def _decode(self, received: ReceivedRecord) -> JobEvent | None:
        try:
            return decode(JobEvent, received.value, received.headers)
        except RecordUnreadableError as error:
            place = (received.topic, received.partition, received.offset)
            LOG.error("record unreadable", extra={"place": place, "reason": str(error)})  # noqa: TRY400  the cause may quote the value
            send_dead_letter(self.producer, received, code=error.code)
            return None

    def _commit(self) -> None:
        done: dict[Partition, int] = {
            (record.topic, record.partition): record.offset + 1 for record in self._polled
        }
        self._polled = []
        try:
            self.consumer.commit(done)
        except StaleMemberError:
            LOG.warning("the group goes on without this member")
