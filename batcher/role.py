"""The batcher as a whole: one event loop, and its ways to begin and end."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from batcher.inbound.unreadable_records import send_unreadable
from batcher.settings import BatcherSettings
from batcher.startup import completes_before_stop
from batcher.watchdog import Watchdog
from batcher.wiring import BatcherDeps, build_components
from core.errors import MillraceError
from core.futures import in_daemon
from core.role_life import say_ready
from topics.clients.admin import LogAdmin
from topics.clients.offsets import Partition
from topics.clients.producer import OnDelivery
from topics.errors import LogUnavailableError
from topics.records.received import Received
from topics.records.records import Capacity

_START_THREAD = "batcher-start"
_STOP_POLL_S = 0.1


class FaustStoppedError(MillraceError):
    """Faust has stopped by itself."""

    code = "faust_ended"


async def run_batcher(
    settings: BatcherSettings, surroundings: BatcherDeps, stop: threading.Event
) -> None:
    """Batch until `stop`. Raises MillraceError when the process should end and start again.

    1. Wait for the broker. 2. Read control to its end. 3. Join the group. 4. Work.
    5. Stop taking, acknowledge what is sent, leave the group.
    """
    admin = LogAdmin(surroundings.kafka)
    waiting = in_daemon(
        partial(admin.wait_for_broker, settings.start_timeout_s), name=_START_THREAD
    )
    if not await completes_before_stop(waiting, stop):
        return
    batcher = Batcher(settings, surroundings, admin)
    try:
        if await completes_before_stop(batcher.start(), stop):
            await batcher.work(stop)
    finally:
        await batcher.leave()


class Batcher:
    """One running batcher, the owner of its parts; built and used on one event loop."""

    def __init__(
        self, settings: BatcherSettings, surroundings: BatcherDeps, admin: LogAdmin
    ) -> None:
        """Build and wire every part; connect to nothing."""
        self._settings, self._clock = settings, surroundings.clock
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._connecting = self._joined = False
        self._parts = build_components(settings, surroundings, admin, self)

    async def start(self) -> None:
        """Read control, follow capacity, join the group. Raises LogUnavailableError."""
        parts, timeout_s = self._parts, self._settings.start_timeout_s
        self._connecting = True
        await in_daemon(partial(self._connect, timeout_s), name=_START_THREAD)
        self._spawn(parts.time.follow())
        self._spawn(parts.dispatcher.run(parts.clockwork.publish_news))
        self._spawn(parts.arrivals.check_redeliveries(self.wake))
        self._spawn(parts.clockwork.tick())
        self._joined = True
        try:
            # Faust waits for ever when the broker refuses its session timeout.
            async with asyncio.timeout(timeout_s):
                await parts.app.start()
        except TimeoutError:
            raise LogUnavailableError("no partitions were assigned in time") from None
        self._spawn(parts.clockwork.watch(Watchdog(self._settings.stall_limit_s)))
        say_ready()

    async def work(self, stop: threading.Event) -> None:
        """Return when `stop` is set. Raises what ended the role otherwise."""
        while not stop.is_set():
            done, _ = await asyncio.wait([self._failed], timeout=_STOP_POLL_S)
            if done:
                raise self._failed.result()
            if self._parts.stream.has_ended:
                raise FaustStoppedError

    async def leave(self) -> None:
        """Stop taking, let what is sent be acknowledged and committed, leave; all bounded."""
        parts = self._parts
        parts.stream.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        half_s = self._settings.stop_timeout_s / 2
        with suppress(MillraceError):
            parts.clockwork.demand.publish({})  # credit goes to others at once
            await asyncio.to_thread(parts.producer.flush, half_s)
        await asyncio.sleep(0)  # the last acknowledgements are settled on this loop
        if self._joined:
            with suppress(TimeoutError):
                async with asyncio.timeout(half_s):
                    await parts.app.consumer.commit()
                    await parts.app.stop()
        if not self._connecting:  # else they are in use, in a thread that was left behind
            await asyncio.to_thread(parts.close)

    def take(self, record: Received, event: Any) -> None:
        """See `StreamOwner`."""
        parts = self._parts
        parts.arrivals.take(record, event, report=self._report, settle=parts.sender.settle)
        self.wake()

    async def room(self) -> None:
        """See `StreamOwner`."""
        while self._parts.queues.is_full:
            self._parts.dispatcher.room.clear()
            await self._parts.dispatcher.room.wait()

    def assigned(self, end_offsets: Mapping[Partition, int]) -> None:
        """See `StreamOwner`."""
        self._parts.arrivals.assigned(end_offsets)

    def revoked(self, partitions: list[Partition]) -> None:
        """See `StreamOwner`."""
        self._parts.arrivals.revoked(partitions)
        self.wake()

    def failed(self, failure: BaseException) -> None:
        """See `StreamOwner`; the first failure is the one that is told."""
        if not self._failed.done():
            self._failed.set_result(failure)

    def wake(self) -> None:
        """See `parts.Owner`."""
        self._parts.dispatcher.wake()

    def heard(self, news: list[Capacity]) -> None:
        """See `parts.Owner`."""
        self._from_thread(self._take_capacity, news)

    def feed_failed(self, failure: BaseException) -> None:
        """See `parts.Owner`."""
        self._from_thread(self.failed, failure)

    def _connect(self, timeout_s: float) -> None:
        try:
            self._parts.connect(timeout_s)
        finally:
            self._connecting = False

    def _take_capacity(self, news: list[Capacity]) -> None:
        now_s = self._clock.monotonic_s()
        for capacity in news:
            self._parts.ledger.heard(capacity, now_s=now_s)
        self.wake()

    def _report(self, record: Received, on_delivery: OnDelivery) -> int:
        return send_unreadable(self._parts.producer, record, on_delivery)

    def _from_thread(self, call: Callable[[Any], None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(call, argument)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until the end; its failure is the role's."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failed(failure)
