"""Events of jobs, from the log into rows: an offset is committed after its rows are."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from core.errors import RecordUnreadableError
from results.webhooks.events.message_recording import record_events
from topics.clients.consumer import LogConsumer
from topics.clients.offsets import Partition
from topics.clients.producer import LogProducer
from topics.errors import StaleMemberError
from topics.records.codec import decode
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received import Received
from topics.records.records import JobEvent

LOG = logging.getLogger(__name__)

GROUP: Final = "webhooks"
_POLL_RECORDS_MAX: Final = 500
_POLL_S: Final = 0.5  # how soon a stop is noticed
_FLUSH_S: Final = 30.0


@dataclass(slots=True)
class JobEventReader:
    """One member of the group; its methods run in one thread."""

    engine: sa.Engine
    consumer: LogConsumer
    producer: LogProducer
    on_deliveries: Callable[[], None]  # wakes who delivers
    _held: list[Received] = field(default_factory=list)  # polled, not yet in rows
    _events: list[JobEvent] = field(default_factory=list)  # of them

    def run_once(self) -> None:
        """1. Poll. 2. Add rows in one transaction. 3. Commit the offsets.

        A crash between 2 and 3 repeats records, which adds nothing. Raises one of DATABASE_AWAY
        and keeps what it read for the next step; SchemaTooNewError, LogUnavailableError,
        DeliveryError.
        """
        if not self._held:
            self._held = self.consumer.poll(_POLL_RECORDS_MAX, _POLL_S)
            # Once, as a dead letter that is sent for each try at Postgres would be many.
            self._events = [event for received in self._held if (event := self._read(received))]
        if not self._held:
            return
        with self.engine.begin() as connection:
            count = record_events(connection, self._events)
        if count:
            self.on_deliveries()
        self.producer.flush(_FLUSH_S)  # dead letters are durable before their records are past
        self._commit()

    def _read(self, received: Received) -> JobEvent | None:
        try:
            return decode(JobEvent, received.value, received.headers)
        except RecordUnreadableError as error:
            place = (received.topic, received.partition, received.offset)
            LOG.error("record unreadable", extra={"place": place, "reason": str(error)})  # noqa: TRY400  the cause may quote the value
            send_dead_letter(self.producer, received, code=error.code)
            return None

    def _commit(self) -> None:
        done: dict[Partition, int] = {
            (received.topic, received.partition): received.offset + 1 for received in self._held
        }
        self._held = []
        try:
            self.consumer.commit(done)
        except StaleMemberError:
            LOG.warning("the group goes on without this member")
