"""This process's signs of life on `callers`, and what it decided of its calls."""

import asyncio
from collections.abc import Callable
from typing import Final
from uuid import UUID

from api.online.log_health import LogHealth
from core.clock import Clock
from topics.catalogue import CALLERS
from topics.codec import encode, kind_headers
from topics.errors import DeliveryError, ProducerFatalError
from topics.known_callers import BEAT_S, SILENCE_S_MAX
from topics.producer import Sender
from topics.records import CallerNews

LOST_S: Final = SILENCE_S_MAX - 0.5
"""Age of the last acknowledged beat from which others may take this process for dead."""

_UNACKNOWLEDGED_MAX: Final = 8


class NewsPublisher:
    """Sends beats, and at once what cannot wait; decisions of one loop turn share a record."""

    def __init__(self, sender: Sender, caller_id: str, clock: Clock, health: LogHealth) -> None:
        """Nothing is said yet."""
        self._sender, self._caller_id = sender, caller_id
        self._clock, self._health = clock, health
        self._headers = kind_headers(CallerNews)
        self._aborted: list[UUID] = []
        self._permitted: list[UUID] = []
        self._is_scheduled = False
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
        if self._unacknowledged >= _UNACKNOWLEDGED_MAX and not leaving:
            return
        news = CallerNews(
            self._caller_id, self._clock.wall_s(), self._aborted, self._permitted, leaving
        )
        sent_s = self._clock.monotonic_s()
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
        else:
            self._aborted, self._permitted = [], []
        self._unacknowledged += 1

    def _settle(self, failure: BaseException | None, sent_s: float) -> None:
        """Note what became of news."""
        self._unacknowledged -= 1
        if failure is None:
            self._was_heard = True
            self._said_s = max(self._said_s, sent_s)
        self._note(failure)

    def _note(self, failure: BaseException | None) -> None:
        if isinstance(failure, ProducerFatalError):
            self._fatal = failure

    def _soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self.say)
