# ruff: noqa: SLF001 - the point of this module is to replace parts of one exact release
"""Faust's Kafka client on the application's own event loop, for records that must not wait.

Faust keeps aiokafka in a thread, so that a slow agent cannot starve its heartbeats. Each poll then
crosses between two loops twice, and two threads contend for the interpreter. Our agent never
blocks the loop for long, so one loop is enough.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import aiokafka
import faust
from faust.transport.drivers import aiokafka as driver

VERSION = "0.14.0"
"""Of aiokafka, whose fetcher is paced here; Faust's own is checked by `faust_patches`."""

Fetch = Callable[..., Awaitable[bool]]
"""Asks a broker for records; returns whether some came."""


def install_single_loop_client(app: faust.App, *, fetch_gap_s: float) -> None:
    """Let `app`, which is not started yet, read on its own loop.

    After an answer with records the next request waits `fetch_gap_s`: while records come one by
    one, nothing is delayed, and when many come, each round trip brings more of them.
    """
    assert aiokafka.__version__ == VERSION, "read the new release and decide again"

    class Consumer(driver.Consumer):  # type: ignore[misc]  # faust has no types
        def _new_consumer_thread(self) -> SingleLoopClient:
            return SingleLoopClient(
                self, loop=self.loop, beacon=self.beacon, fetch_gap_s=fetch_gap_s
            )

    app.transport.Consumer = Consumer


class SingleLoopClient(driver.AIOKafkaConsumerThread):  # type: ignore[misc]  # faust has no types
    """Stands where Faust expects a service with a thread of its own."""

    def __init__(
        self, consumer: Any, *, loop: asyncio.AbstractEventLoop, beacon: Any, fetch_gap_s: float
    ) -> None:
        """Run on `loop`, the application's."""
        super().__init__(consumer, loop=loop, thread_loop=loop, beacon=beacon)
        self._fetch_gap_s = fetch_gap_s
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start the client; return when it is connected. Raises what the connection raised."""
        assert self._serving is None
        self._thread_started.set()
        connected: asyncio.Future[None] = asyncio.Future(loop=self.parent_loop)
        self._thread_running: asyncio.Future[None] | None = connected
        self._serving = asyncio.ensure_future(self._serve())
        # Its failure is told through `connected` or the crash of the app, both by Faust.
        self._serving.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await connected
        finally:
            self._thread_running = None

    async def on_start(self) -> None:
        """Pace the fetcher as soon as there is one."""
        await super().on_start()
        assert self._consumer is not None
        fetcher = self._consumer._fetcher
        fetcher._proc_fetch_request = with_fetch_gap(
            fetcher._proc_fetch_request, gap_s=self._fetch_gap_s
        )

    async def call_thread(self, fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call at once: there is no other thread."""
        result = fun(*args, **kwargs)
        return await result if asyncio.iscoroutine(result) else result

    async def _gather_remaining_tasks(self) -> None:
        """Leave the loop's other tasks alone: they are not the client's."""


def with_fetch_gap(fetch: Fetch, *, gap_s: float, now_s: Callable[[], float] = monotonic) -> Fetch:
    """Return `fetch` with a pause of `gap_s` between an answer with records and what follows."""
    not_before_s = 0.0

    async def fetch_later(*args: Any) -> bool:
        nonlocal not_before_s
        wait_s = not_before_s - now_s()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        came = await fetch(*args)
        if came:
            not_before_s = now_s() + gap_s
        return came

    return fetch_later
