"""Publishes this API replica's heartbeat and its abort and rerun decisions to `callers`."""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from api.online.send.call_sender import CALLERS_PLACE, LogHealth
from core.clock import Clock
from topics.clients.producer import RecordSender
from topics.errors import DeliveryError, ProducerFatalError
from topics.records.catalogue import CALLERS
from topics.records.codec import encode, kind_headers
from topics.records.records import CallerHeartbeat
from topics.tail_readers.caller_liveness import CALLER_HEARTBEAT_S, CALLER_TIMEOUT_S


class CallerClock:
    """Starts at the wall time and advances with the monotonic clock.

    Batchers and replicas compare deadlines with the time in this caller's heartbeats
    (`CallerHeartbeat.now_s`). A wrong wall clock is harmless then; one that is adjusted while calls
    are open would end them.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._origin_s = clock.wall_s() - clock.monotonic_s()

    def monotonic_s(self) -> float:
        """See `Clock`."""
        return self._clock.monotonic_s()

    def now_s(self) -> float:
        """Return seconds since the epoch, with the error of the wall clock at the start."""
        return self._origin_s + self._clock.monotonic_s()


LOST_S: Final = CALLER_TIMEOUT_S - 0.5
"""Age of the last acknowledged heartbeat from which others may consider this process dead."""

IDS_MAX: Final = 10_000
"""Ids of each list in one record. Two full lists of 38 bytes an id fit a record."""

_UNACKNOWLEDGED_MAX: Final = 8


class CallerHeartbeatPublisher:
    """Sends a record every CALLER_HEARTBEAT_S, and one at once for decisions.

    Decisions of one turn of the event loop share a record. While the log does not acknowledge,
    decisions are kept for a later record.
    """

    def __init__(
        self, sender: RecordSender, caller_id: str, clock: CallerClock, health: LogHealth
    ) -> None:
        self._sender, self._caller_id = sender, caller_id
        self._clock, self._health = clock, health
        self._headers = kind_headers(CallerHeartbeat)
        self._aborted: list[UUID] = []
        self._permitted: list[UUID] = []
        self._is_scheduled = False
        self._has_left = False  # a record after the last one would announce a live process
        self._unacknowledged = 0
        self.is_acknowledged = False  # the log has acknowledged a heartbeat of this process
        self._acknowledged_s = clock.monotonic_s()  # when the newest acknowledged record was sent
        self._fatal: ProducerFatalError | None = None

    def abort_call(self, request_id: UUID) -> None:
        """Publish that a call has no client any more."""
        self._aborted.append(request_id)
        self._schedule()

    def permit_rerun(self, request_id: UUID) -> None:
        """Publish that a call that was delivered a second time may be executed."""
        self._permitted.append(request_id)
        self._schedule()

    async def run(self, on_lost: Callable[[float], None]) -> None:
        """Publish until cancelled. Raises ProducerFatalError: the producer cannot send any more.

        When acknowledgements stay out, `on_lost` gets the current time: others may have given up
        the calls that were sent before it.
        """
        while True:
            self.publish()
            if self._fatal is not None:
                raise self._fatal
            now_s = self._clock.monotonic_s()
            if now_s - self._acknowledged_s > LOST_S:
                on_lost(now_s)
            await asyncio.sleep(CALLER_HEARTBEAT_S)

    def publish(self, *, leaving: bool = False) -> None:
        """Send a heartbeat with all decisions; `leaving` marks the last one of this process."""
        self._is_scheduled = False
        if self._has_left:
            return
        if leaving:
            self._has_left = True
            while max(len(self._aborted), len(self._permitted)) > IDS_MAX:
                if not self._send(leaving=False):
                    break
        elif self._unacknowledged >= _UNACKNOWLEDGED_MAX:
            return
        if self._send(leaving=leaving) and self._has_decisions:
            self._schedule()

    @property
    def _has_decisions(self) -> bool:
        return bool(self._aborted or self._permitted)

    def _send(self, *, leaving: bool) -> bool:
        """Send as much as one record holds; return False when the producer rejects it."""
        aborted, permitted = self._aborted[:IDS_MAX], self._permitted[:IDS_MAX]
        now_s = self._clock.now_s()
        record = CallerHeartbeat(self._caller_id, now_s, aborted, permitted, leaving)
        sent_s = self._clock.monotonic_s()
        self._unacknowledged += 1
        loop = asyncio.get_running_loop()
        report = self._health.track(
            lambda failure: loop.call_soon_threadsafe(self._on_report, failure, sent_s),
            CALLERS_PLACE,
        )
        try:
            self._sender.send(
                CALLERS.name,
                encode(record),
                partition=0,
                key=self._caller_id.encode(),
                headers=self._headers,
                on_delivery=report,
            )
        except DeliveryError as failure:
            self._note_fatal(failure)
            report(failure)  # the decisions stay for the next record
            return False
        del self._aborted[:IDS_MAX], self._permitted[:IDS_MAX]
        return True

    def _on_report(self, failure: BaseException | None, sent_s: float) -> None:
        """Handle the delivery report of a record."""
        self._unacknowledged -= 1
        if failure is None:
            self.is_acknowledged = True
            self._acknowledged_s = max(self._acknowledged_s, sent_s)
            if self._has_decisions:
                self._schedule()
        self._note_fatal(failure)

    def _note_fatal(self, failure: BaseException | None) -> None:
        if isinstance(failure, ProducerFatalError):
            self._fatal = failure

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.publish)
