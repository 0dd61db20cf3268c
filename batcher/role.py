"""The batcher as a whole: its parts wired on one event loop, and its ways to begin and end."""

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batcher.acks import OrderedAcks
from batcher.agents import RequestStream, build_app, group_of
from batcher.arrivals import Arrivals
from batcher.capacity_feed import CapacityFeed, DemandPublisher
from batcher.clockwork import Clockwork
from batcher.dispatch import Dispatcher, DispatchRules
from batcher.policy.closing import BatchLimits
from batcher.policy.credits import CreditLedger
from batcher.queues import Queues
from batcher.redeliveries import FinishedIndexes
from batcher.sending import Identity, Sender
from batcher.settings import BatcherSettings
from batcher.sweeps import ClosedFilter, Sweeper
from batcher.unreadable import send_unreadable
from batcher.watchdog import Watchdog
from core.clock import Clock
from core.errors import MillraceError
from topics.admin import LogAdmin
from topics.consumer import Received
from topics.control import ClosedJobs
from topics.errors import LogUnavailableError
from topics.offsets import Partition
from topics.producer import LogProducer, OnDelivery
from topics.records import Capacity
from topics.settings import KafkaSettings

_LOG = logging.getLogger(__name__)
_STOP_POLL_S = 0.1


class FaustEndedError(MillraceError):
    """Faust has stopped by itself."""

    code = "faust_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the role is given besides its settings."""

    kafka: KafkaSettings
    finished: FinishedIndexes | None  # None: redeliveries are not checked
    clock: Clock
    datadir: Path  # Faust insists on a folder; nothing is kept there


async def run_batcher(
    settings: BatcherSettings, surroundings: Surroundings, stop: threading.Event
) -> None:
    """Batch until `stop`. Raises MillraceError when the process should end and start again.

    1. Wait for the broker. 2. Read control to its end. 3. Join the group. 4. Work.
    5. Stop taking, acknowledge what is sent, leave the group.
    """
    admin = LogAdmin(surroundings.kafka)
    await asyncio.to_thread(admin.wait_for_broker, settings.start_timeout_s)
    batcher = Batcher(settings, surroundings, admin)
    try:
        await batcher.start()
        await batcher.work(stop)
    finally:
        await batcher.leave()


class Batcher:
    """One running batcher; built and used on one event loop."""

    def __init__(
        self, settings: BatcherSettings, surroundings: Surroundings, admin: LogAdmin
    ) -> None:
        """Build and wire every part; connect to nothing."""
        kafka, clock = surroundings.kafka, surroundings.clock
        job_class = settings.job_class
        batcher_id = f"{group_of(job_class)}-{uuid.uuid4().hex[:12]}"
        identity = Identity(batcher_id, job_class)
        self._settings, self._clock = settings, clock
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._tasks: list[asyncio.Task[None]] = []
        self._joined = False

        self._producer = LogProducer(kafka, client_id=batcher_id, linger_ms=0)
        self._closed = ClosedJobs(kafka, client_id=batcher_id)
        self._feed = CapacityFeed(
            kafka,
            client_id=batcher_id,
            deliver=lambda news: self._from_thread(self._heard, news),
            on_failure=lambda failure: self._from_thread(self.failed, failure),
        )
        self._ledger = CreditLedger(batcher_id, job_class, silence_s_max=settings.silence_s_max)
        queues = Queues(items_max=settings.held_items_max, bytes_max=settings.held_bytes_max)
        acks = OrderedAcks(RequestStream.acknowledge)
        self._sender = Sender(
            self._producer,
            acks,
            identity=identity,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            on_settled=self._wake,
            on_failure=self.failed,
        )
        closed = ClosedFilter(acks, self._closed.is_closed)
        self._dispatcher = Dispatcher(
            queues,
            self._ledger,
            self._sender,
            rules=rules_of(settings),
            let_go=closed.let_go,
            clock=clock,
        )
        self._arrivals = Arrivals(
            queues,
            acks,
            is_closed=self._closed.is_closed,
            finished=surroundings.finished,
            clock=clock,
        )
        self._app = build_app(kafka, settings, surroundings.datadir)
        self._stream = RequestStream(
            self._app,
            kafka.topic_prefix,
            job_class,
            self,
        )
        self._clockwork = self._wind_up(queues, acks, closed, identity, admin)

    async def start(self) -> None:
        """Read control, follow capacity, join the group. Raises LogUnavailableError."""
        timeout_s = self._settings.start_timeout_s
        await asyncio.to_thread(self._closed.start, timeout_s)
        await asyncio.to_thread(self._feed.start, timeout_s)
        self._spawn(self._dispatcher.run(self._clockwork.publish_news))
        self._spawn(self._arrivals.check_redeliveries(self._wake))
        self._spawn(self._clockwork.tick())
        self._joined = True
        try:
            # Faust waits for ever when the broker refuses its session timeout.
            async with asyncio.timeout(timeout_s):
                await self._app.start()
        except TimeoutError:
            raise LogUnavailableError("no partitions were assigned in time") from None
        self._spawn(self._clockwork.watch(Watchdog(self._settings.stall_limit_s)))
        _LOG.info("batching", extra={"job_class": self._settings.job_class})

    async def work(self, stop: threading.Event) -> None:
        """Return when `stop` is set. Raises what ended the role otherwise."""
        while not stop.is_set():
            done, _ = await asyncio.wait([self._failed], timeout=_STOP_POLL_S)
            if done:
                raise self._failed.result()
            if self._stream.has_ended:
                raise FaustEndedError

    async def leave(self) -> None:
        """Stop taking, let what is sent be acknowledged and committed, leave; all bounded."""
        self._stream.stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        half_s = self._settings.stop_timeout_s / 2
        with suppress(MillraceError):
            self._clockwork.demand.publish({})  # credit goes to others at once
            await asyncio.to_thread(self._producer.flush, half_s)
        await asyncio.sleep(0)  # the last acknowledgements are settled on this loop
        if self._joined:
            with suppress(TimeoutError):
                async with asyncio.timeout(half_s):
                    await self._app.consumer.commit()
                    await self._app.stop()
        await asyncio.to_thread(self._close)

    def _wind_up(
        self,
        queues: Queues,
        acks: OrderedAcks,
        closed: ClosedFilter,
        identity: Identity,
        admin: LogAdmin,
    ) -> Clockwork:
        """Return what is done by the clock."""
        return Clockwork(
            job_class=identity.job_class,
            queues=queues,
            ledger=self._ledger,
            acks=acks,
            arrivals=self._arrivals,
            dispatcher=self._dispatcher,
            sweeper=Sweeper(
                queues=queues,
                ledger=self._ledger,
                acks=acks,
                sender=self._sender,
                closed=closed,
                clock=self._clock,
                hold_limit_s=self._settings.hold_limit_s,
            ),
            demand=DemandPublisher(self._producer, identity),
            stream=self._stream,
            admin=admin,
            clock=self._clock,
        )

    def _close(self) -> None:
        self._feed.stop()
        self._closed.stop()
        self._producer.close(1.0)

    def take(self, record: Received, event: Any) -> None:
        """See `StreamOwner`."""
        self._arrivals.take(record, event, report=self._report, settle=self._sender.settle)
        self._wake()

    async def room(self) -> None:
        """See `StreamOwner`."""
        while self._arrivals.is_full:
            self._dispatcher.room.clear()
            await self._dispatcher.room.wait()

    def assigned(self, end_offsets: Mapping[Partition, int]) -> None:
        """See `StreamOwner`."""
        self._arrivals.assigned(end_offsets)

    def revoked(self, partitions: list[Partition]) -> None:
        """See `StreamOwner`."""
        self._arrivals.revoked(partitions)
        self._wake()

    def failed(self, failure: BaseException) -> None:
        """See `StreamOwner`; the first failure is the one that is told."""
        if not self._failed.done():
            self._failed.set_result(failure)

    def _report(self, record: Received, on_delivery: OnDelivery) -> int:
        return send_unreadable(self._producer, record, on_delivery)

    def _heard(self, news: list[Capacity]) -> None:
        now_s = self._clock.monotonic_s()
        for capacity in news:
            self._ledger.heard(capacity, now_s=now_s)
        self._wake()

    def _wake(self) -> None:
        self._dispatcher.wake()

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


def rules_of(settings: BatcherSettings) -> DispatchRules:
    """Return the dispatcher's numbers."""
    return DispatchRules(
        limits=BatchLimits(
            item_count_max=settings.batch_items_max,
            token_count_max=settings.batch_tokens_max,
            wait_s_max=settings.wait_s_max,
            slack_s_min=settings.slack_s_min,
        ),
        batch_s_max=settings.batch_s_max,
    )
