# ruff: noqa: SLF001 - this module replaces private parts of exact releases, see `faust_patches`
"""Runs Faust's Kafka client on the application's event loop, for low latency.

Faust runs aiokafka in a thread so that a slow agent cannot delay its heartbeats. Each poll then
crosses between two loops twice, and two threads contend for the interpreter. The batcher's agent
never blocks the loop for long, so one loop is enough.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import faust
from faust.transport.drivers import aiokafka as driver

Fetch = Callable[..., Awaitable[bool]]
"""Requests records from a broker; returns whether any came."""


def install(app: faust.App, *, fetch_gap_s: float) -> None:
    """Make `app`, which has not started, read on its own loop.

    After a response with records the next request waits `fetch_gap_s`. Records that arrive one by
    one are not delayed; under load each round trip carries more of them.
    """

    class Consumer(driver.Consumer):  # type: ignore[misc]  # faust has no types
        def _new_consumer_thread(self) -> SingleLoopClient:
            return SingleLoopClient(
                self, loop=self.loop, beacon=self.beacon, fetch_gap_s=fetch_gap_s
            )

    app.transport.Consumer = Consumer


class SingleLoopClient(driver.AIOKafkaConsumerThread):  # type: ignore[misc]  # faust has no types
    """Replaces the service that Faust runs in a thread of its own."""

    def __init__(
        self, consumer: Any, *, loop: asyncio.AbstractEventLoop, beacon: Any, fetch_gap_s: float
    ) -> None:
        """Run on `loop`, the application's."""
        super().__init__(consumer, loop=loop, thread_loop=loop, beacon=beacon)
        self._fetch_gap_s = fetch_gap_s
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the client; return when it is connected. Raises the connection's error."""
        assert self._serving is None
        self._thread_started.set()
        connected: asyncio.Future[None] = asyncio.Future(loop=self.parent_loop)
        self._thread_running: asyncio.Future[None] | None = connected
        self._serving = asyncio.ensure_future(self._serve())
        # Faust reports a failure through `connected` or by crashing the app; retrieve it here so
        # that asyncio does not log it again.
        self._serving.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await connected
        finally:
            self._thread_running = None

    async def on_start(self) -> None:
        """Add the fetch gap to the fetcher, which exists from now on."""
        await super().on_start()
        assert self._consumer is not None
        fetcher = self._consumer._fetcher
        fetcher._proc_fetch_request = with_fetch_gap(
            fetcher._proc_fetch_request, gap_s=self._fetch_gap_s
        )

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call directly: there is no other thread."""
        result = fun(*args, **kwargs)
        return await result if asyncio.iscoroutine(result) else result

    async def _gather_remaining_tasks(self) -> None:
        """Leave the loop's other tasks running: they are not the client's."""


def with_fetch_gap(fetch: Fetch, *, gap_s: float, now_s: Callable[[], float] = monotonic) -> Fetch:
    """Return `fetch` with a pause of `gap_s` after each response with records."""
    not_before_s = 0.0

    async def fetch_after_gap(*args: Any) -> bool:
        nonlocal not_before_s
        wait_s = not_before_s - now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        has_records = await fetch(*args)
        if has_records:
            not_before_s = now_s() + gap_s
        return has_records

    return fetch_after_gap
