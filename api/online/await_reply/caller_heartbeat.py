"""This process's signs of life on `callers`, and what it decided of its calls."""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from api.online.await_reply.caller_clock import CallerClock
from api.online.send.log_health import LogHealth
from topics.clients.producer import Sender
from topics.errors import DeliveryError, ProducerFatalError
from topics.records.catalogue import CALLERS
from topics.records.codec import encode, kind_headers
from topics.records.records import CallerNews
from topics.tail_readers.known_callers import BEAT_S, SILENCE_S_MAX

LOST_S: Final = SILENCE_S_MAX - 0.5
"""Age of the last acknowledged beat from which others may take this process for dead."""

IDS_MAX: Final = 10_000
"""Ids of each list in one record: twice as many, of 38 bytes each, fit."""

_UNACKNOWLEDGED_MAX: Final = 8


class CallerHeartbeat:
    """Sends beats, and at once what cannot wait; decisions of one loop turn share a record."""

    def __init__(
        self, sender: Sender, caller_id: str, clock: CallerClock, health: LogHealth
    ) -> None:
        """Nothing is said yet."""
        self._sender, self._caller_id = sender, caller_id
        self._clock, self._health = clock, health
        self._headers = kind_headers(CallerNews)
        self._aborted: list[UUID] = []
        self._permitted: list[UUID] = []
        self._is_scheduled = False
        self._has_left = False  # after its last word a beat would say that it lives
        self._unacknowledged = 0
        self._was_heard = False
        self._said_s = clock.monotonic_s()  # when the newest acknowledged news were sent
        self._fatal: ProducerFatalError | None = None

    @property
    def was_heard(self) -> bool:
        """Whether the log ever took news of this process."""
        return self._was_heard

    def abort(self, request_id: UUID) -> None:
        """Tell that nobody waits for a call any more."""
        self._aborted.append(request_id)
        self._soon()

    def permit(self, request_id: UUID) -> None:
        """Tell that a call that came a second time may run."""
        self._permitted.append(request_id)
        self._soon()

    async def run(self, on_lost: Callable[[float], None]) -> None:
        """Beat until cancelled. Raises ProducerFatalError: nothing can be sent any more.

        `on_lost` gets the moment before which calls were sent that others may have given up.
        """
        while True:
            self.say()
            if self._fatal is not None:
                raise self._fatal
            now_s = self._clock.monotonic_s()
            if now_s - self._said_s > LOST_S:
                on_lost(now_s)
            await asyncio.sleep(BEAT_S)

    def say(self, *, leaving: bool = False) -> None:
        """Send what there is to say; while the log does not answer, keep it for later."""
        self._is_scheduled = False
        if self._has_left:
            return
        if leaving:
            self._has_left = True
            while self._has_more and self._send(leaving=False):
                pass
        elif self._unacknowledged >= _UNACKNOWLEDGED_MAX:
            return
        if self._send(leaving=leaving) and self._has_decided:
            self._soon()

    @property
    def _has_decided(self) -> bool:
        return bool(self._aborted or self._permitted)

    @property
    def _has_more(self) -> bool:
        """Whether what is decided fits no record."""
        return max(len(self._aborted), len(self._permitted)) > IDS_MAX

    def _send(self, *, leaving: bool) -> bool:
        """Send as much as a record holds; False when the log does not take it."""
        aborted, permitted = self._aborted[:IDS_MAX], self._permitted[:IDS_MAX]
        now_s = self._clock.now_s()
        news = CallerNews(self._caller_id, now_s, aborted, permitted, leaving)
        sent_s = self._clock.monotonic_s()
        self._unacknowledged += 1
        loop = asyncio.get_running_loop()
        report = self._health.watch(
            lambda failure: loop.call_soon_threadsafe(self._settle, failure, sent_s)
        )
        try:
            self._sender.send(
                CALLERS.name,
                encode(news),
                partition=0,
                key=self._caller_id.encode(),
                headers=self._headers,
                on_delivery=report,
            )
        except DeliveryError as failure:
            self._note(failure)
            report(failure)  # what was decided stays for the next news
            return False
        del self._aborted[:IDS_MAX], self._permitted[:IDS_MAX]
        return True

    def _settle(self, failure: BaseException | None, sent_s: float) -> None:
        """Note what became of news."""
        self._unacknowledged -= 1
        if failure is None:
            self._was_heard = True
            self._said_s = max(self._said_s, sent_s)
            if self._has_decided:
                self._soon()
        self._note(failure)

    def _note(self, failure: BaseException | None) -> None:
        if isinstance(failure, ProducerFatalError):
            self._fatal = failure

    def _soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.say)
