"""The batcher's life cycle on one event loop: start, run, shut down."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from batcher.inbound.unreadable_records import send_unreadable
from batcher.settings import BatcherSettings
from batcher.watchdog import Watchdog
from batcher.wiring import BatcherDeps, build_components
from core.errors import MillraceError
from core.futures import run_in_daemon_thread
from core.role_lifecycle import report_ready
from topics.clients.admin import TopicAdmin
from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery
from topics.errors import KafkaUnavailableError
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity

_START_THREAD = "batcher-start"
_STOP_POLL_S = 0.1

_CANCEL_S_MAX = 2.0
"""Time that start-up work has to end once a stop has cancelled it."""


class FaustStoppedError(MillraceError):
    """Faust stopped by itself; the batcher must be restarted."""

    code = "faust_ended"


async def run_batcher(settings: BatcherSettings, deps: BatcherDeps, stop: threading.Event) -> None:
    """Batch until `stop`. Raises MillraceError when the process must be restarted.

    1. Wait for the broker. 2. Read job controls to their end. 3. Join the group. 4. Run.
    5. Stop reading, wait for acknowledgements, leave the group.
    """
    admin = TopicAdmin(deps.kafka)
    broker_ready = run_in_daemon_thread(
        partial(admin.wait_for_broker, settings.start_timeout_s), name=_START_THREAD
    )
    if not await completes_before_stop(broker_ready, stop):
        return
    batcher = Batcher(settings, deps, admin)
    try:
        if await completes_before_stop(batcher.start(), stop):
            await batcher.run(stop)
    finally:
        await batcher.shut_down()


async def completes_before_stop(work: Awaitable[object], stop: threading.Event) -> bool:
    """Return True once `work` completes, or cancel it when `stop` is set and return False.

    Raises what `work` raises.
    """
    task = asyncio.ensure_future(work)
    while not task.done():
        if stop.is_set():
            task.cancel()
            await asyncio.wait([task], timeout=_CANCEL_S_MAX)
            return False
        await asyncio.wait([task], timeout=_STOP_POLL_S)
    task.result()
    return True


class Batcher:
    """One running batcher; built and used on one event loop."""

    def __init__(self, settings: BatcherSettings, deps: BatcherDeps, admin: TopicAdmin) -> None:
        """Build and wire every component without connecting."""
        self._settings, self._clock = settings, deps.clock
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[BaseException] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_connecting = self._has_joined = False
        self._components = build_components(settings, deps, admin, self)

    async def start(self) -> None:
        """Read job controls, read capacity, join the group. Raises KafkaUnavailableError."""
        components, timeout_s = self._components, self._settings.start_timeout_s
        self._is_connecting = True
        await run_in_daemon_thread(partial(self._connect, timeout_s), name=_START_THREAD)
        self._spawn(components.time.run())
        self._spawn(components.dispatcher.run(components.periodic.publish_new_demand))
        self._spawn(components.record_handler.check_redeliveries(self.wake))
        self._spawn(components.periodic.run())
        self._has_joined = True
        try:
            # Faust waits for ever when the broker rejects its session timeout.
            async with asyncio.timeout(timeout_s):
                await components.app.start()
        except TimeoutError:
            raise KafkaUnavailableError("no partitions were assigned in time") from None
        self._spawn(components.periodic.run_watchdog(Watchdog(self._settings.stall_limit_s)))
        report_ready()

    async def run(self, stop: threading.Event) -> None:
        """Return when `stop` is set. Raises the failure that ends the role."""
        while not stop.is_set():
            done, _ = await asyncio.wait([self._failure], timeout=_STOP_POLL_S)
            if done:
                raise self._failure.result()
            if self._components.stream.has_ended:
                raise FaustStoppedError

    async def shut_down(self) -> None:
        """Stop reading, wait for acknowledgements and commits, leave the group; all bounded."""
        components = self._components
        components.stream.is_stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        half_s = self._settings.stop_timeout_s / 2
        with suppress(MillraceError):
            components.periodic.demand.publish({})  # replicas grant the credit to others at once
            await asyncio.to_thread(components.producer.flush, half_s)
        await asyncio.sleep(0)  # the last acknowledgements are settled on this loop
        if self._has_joined:
            with suppress(TimeoutError):
                async with asyncio.timeout(half_s):
                    await components.app.consumer.commit()
                    await components.app.stop()
        if not self._is_connecting:  # else an abandoned thread still uses the connections
            await asyncio.to_thread(components.close)

    def on_record(self, record: ReceivedRecord, event: Any) -> None:
        """See `StreamListener`."""
        components = self._components
        components.record_handler.handle_record(
            record,
            event,
            report_unreadable=self._report_unreadable,
            settle=components.sender.settle_on_delivery,
        )
        self.wake()

    async def wait_until_ready(self) -> None:
        """See `StreamListener`."""
        await self._components.dispatcher.wait_until_not_full()

    def on_assign(self, end_offsets: Mapping[Partition, int]) -> None:
        """See `StreamListener`."""
        self._components.record_handler.on_assign(end_offsets)

    def on_revoke(self, partitions: list[Partition]) -> None:
        """See `StreamListener`."""
        self._components.record_handler.on_revoke(partitions)
        self.wake()

    def on_failure(self, failure: BaseException) -> None:
        """See `StreamListener`; only the first failure is raised."""
        if not self._failure.done():
            self._failure.set_result(failure)

    def wake(self) -> None:
        """See `RoleCallbacks`."""
        self._components.dispatcher.wake()

    def on_capacity(self, capacities: list[Capacity]) -> None:
        """See `RoleCallbacks`."""
        self._call_from_thread(self._record_capacity, capacities)

    def on_reader_failure(self, failure: BaseException) -> None:
        """See `RoleCallbacks`."""
        self._call_from_thread(self.on_failure, failure)

    def _connect(self, timeout_s: float) -> None:
        try:
            self._components.connect(timeout_s)
        finally:
            self._is_connecting = False

    def _record_capacity(self, capacities: list[Capacity]) -> None:
        now_s = self._clock.monotonic_s()
        for capacity in capacities:
            self._components.ledger.record_capacity(capacity, now_s=now_s)
        self.wake()

    def _report_unreadable(self, record: ReceivedRecord, on_delivery: OnDelivery) -> int:
        return send_unreadable(self._components.producer, record, on_delivery)

    def _call_from_thread(self, call: Callable[[Any], None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._loop.call_soon_threadsafe(call, argument)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task; its failure ends the role."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._on_task_done)
        self._tasks.append(task)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.on_failure(failure)
