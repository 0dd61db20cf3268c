"""Reads `scaling` for ever: a reader that fails is replaced, after 30 s at first.

Its topic and the right to it may be missing where no autoscaler runs, so its failure stops nothing:
without new records calls are refused as without an autoscaler.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from api.online import metrics
from core.clock import Clock
from topics.records.received_record import ReceivedRecord

_LOG = logging.getLogger(__name__)

RETRY_S_MIN: Final = 30.0
RETRY_S_MAX: Final = 300.0
"""Pause before a reader is replaced; it doubles with each that read nothing."""

READY_S_MAX: Final = 2.0
"""Seconds for which readiness waits for the first records."""

_TICK_S: Final = 0.25
_WHOLE_TOPIC: Final = 2**62  # offsets before the end

Handle: TypeAlias = Callable[[list[ReceivedRecord]], None]
OnFailure: TypeAlias = Callable[[Exception], None]


class TailThread(Protocol):
    """What is used of `TailReaderThread`."""

    def start_before_end(self, count: int) -> None:
        """Read from so many records before the end on."""

    def request_stop(self) -> None:
        """Begin the time that `stop` waits."""

    def stop(self) -> None:
        """Wait for the thread to end."""


class ScalingReader:
    """Keeps one thread that reads the topic from its start. Used on the event loop."""

    def __init__(
        self, build: Callable[[Handle, OnFailure], TailThread], apply: Handle, clock: Clock
    ) -> None:
        """`build` returns a new thread, which has not been started. `apply` runs in it."""
        self._build, self._apply, self._clock = build, apply, clock
        self._tail: TailThread | None = None
        self._started_s = math.inf
        self._has_read = self._has_failed = False  # set by the thread
        self._retry_s, self._retry_at_s = RETRY_S_MIN, math.inf

    @property
    def is_settled(self) -> bool:
        """Whether readiness need not wait: records were read, or will not be soon."""
        waited_s = self._clock.monotonic_s() - self._started_s
        return self._has_read or self._has_failed or waited_s >= READY_S_MAX

    def start(self) -> None:
        """Start the first reader."""
        self._started_s = self._clock.monotonic_s()
        self._open()

    async def run(self) -> None:
        """Replace readers that fail, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_TICK_S)

    async def check(self) -> None:
        """Replace a reader that has failed, once its pause has passed."""
        metrics.SCALING_READER.set(self._has_read and not self._has_failed)
        now_s = self._clock.monotonic_s()
        if not self._has_failed:
            return
        if math.isinf(self._retry_at_s):
            if self._has_read:
                self._retry_s = RETRY_S_MIN
            self._retry_at_s = now_s + self._retry_s
            self._retry_s = min(RETRY_S_MAX, 2 * self._retry_s)
        elif now_s >= self._retry_at_s:
            _LOG.info("the reader of scaling is started again")
            if self._tail is not None:
                await asyncio.to_thread(self._tail.stop)
            self._open()

    def request_stop(self) -> None:
        """See `TailReaderThread`."""
        if self._tail is not None:
            self._tail.request_stop()

    def stop(self) -> None:
        """See `TailReaderThread`."""
        if self._tail is not None:
            self._tail.stop()

    def _open(self) -> None:
        self._has_read = self._has_failed = False
        self._retry_at_s = math.inf
        self._tail = self._build(self._receive, self._fail)
        self._tail.start_before_end(_WHOLE_TOPIC)

    def _receive(self, records: list[ReceivedRecord]) -> None:
        self._apply(records)
        self._has_read = True

    def _fail(self, _: Exception) -> None:
        self._has_failed = True
