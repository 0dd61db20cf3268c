"""Sending of a call to the batcher as one record of `requests.interactive`."""

import asyncio
import threading
from collections.abc import Callable
from itertools import count

from api.online.await_reply.open_call import OpenCall
from api.online.call_errors import log_unavailable
from api.online.send.large_bodies import BODY_BYTES_MAX
from core.clock import Clock
from core.ids import REQUEST, public_id
from topics.clients.producer import OnDelivery, RecordSender
from topics.errors import DeliveryError
from topics.records.chunks import send_chunk
from topics.records.records import Chunk, Item, JobRef

_JOB_CLASS = "interactive"


def call_item(job: JobRef, body: bytes, token_count: int, line_bytes: int) -> Item:
    """Return the only item of a call; `line_bytes` is the length of its stored line."""
    by_reference = len(body) > BODY_BYTES_MAX
    return Item(
        index=0,
        custom_id=public_id(REQUEST, job.job_id),
        body=b"" if by_reference else body,
        token_count=token_count,
        length=line_bytes if by_reference else 0,
    )


class LogHealth:
    """Tracks the records that are not acknowledged yet. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count()
        self._pending: dict[int, float] = {}  # in the order of sending

    def track(self, then: Callable[[BaseException | None], object]) -> OnDelivery:
        """Track a record that is sent now. Pass the result to the producer as `on_delivery`."""
        number = next(self._numbers)
        with self._lock:
            self._pending[number] = self._clock.monotonic_s()

        def on_delivery(failure: BaseException | None) -> None:
            with self._lock:
                self._pending.pop(number, None)
            then(failure)

        return on_delivery

    def oldest_pending_s(self) -> float:
        """Return the age of the oldest unacknowledged record; 0 when there is none."""
        with self._lock:
            oldest_pending_s = next(iter(self._pending.values()), None)
        return 0.0 if oldest_pending_s is None else self._clock.monotonic_s() - oldest_pending_s


class CallSender:
    """Sends calls, and refuses them while the log does not acknowledge records."""

    def __init__(self, sender: RecordSender, health: LogHealth, *, patience_s: float) -> None:
        """A record unacknowledged for longer than `patience_s` makes the log unavailable."""
        self._sender, self._health, self._patience_s = sender, health, patience_s

    def check_log_available(self) -> None:
        """Raise ApiError (503) while the log does not answer."""
        if self._health.oldest_pending_s() > self._patience_s:
            raise log_unavailable()

    def send(self, call: OpenCall, item: Item) -> None:
        """Send a call. Raises ApiError (503); a later delivery failure ends the call."""
        loop = asyncio.get_running_loop()

        def on_result(failure: BaseException | None) -> None:
            if failure is not None:
                loop.call_soon_threadsafe(call.fail, log_unavailable())

        report = self._health.track(on_result)
        try:
            send_chunk(self._sender, Chunk(call.job, [item]), _JOB_CLASS, report)
        except DeliveryError as failure:
            report(failure)
            raise log_unavailable() from None
