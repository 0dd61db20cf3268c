"""The batcher's components and their life cycle on one event loop: build, start, run, shut down."""

import asyncio
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from batcher.commit_watch import CheckCommits, watch_commits
from batcher.database_clock import DatabaseClock, ReadDatabaseTime
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.faust_app.request_stream import RequestStream, build_app, group_of
from batcher.inbound.deferred_reads import DeferredReads
from batcher.inbound.record_handler import RecordHandler
from batcher.inbound.redelivered_items import FindFinishedItems
from batcher.inbound.unreadable_records import send_unreadable
from batcher.outbound.batch_sender import BatcherIdentity, BatchSender
from batcher.outbound.demand_publisher import DemandPublisher
from batcher.outbound.dispatcher import Dispatcher
from batcher.outbound.service_publisher import ServicePublisher
from batcher.outbound.service_recovery import read_leads
from batcher.outbound.state_readers import StateHandlers, StateReaders
from batcher.periodic import PeriodicTasks
from batcher.policy.compute_model import ComputeModel
from batcher.policy.credits import CreditLedger
from batcher.policy.service_exchange import ServiceExchange
from batcher.policy.service_restore import Leads
from batcher.policy.sticky_partitioner import STICKY_S
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.pool_arrivals import PoolArrivals
from batcher.queueing.queue_discipline import QueueDiscipline
from batcher.queueing.queue_levels import PoolQueue
from batcher.queueing.queues import Queues
from batcher.queueing.tenant_service import (
    charge_corrections,
    charge_remote_service,
    restore_service,
)
from batcher.settings import BatcherSettings
from batcher.watchdog import Watchdog
from core.clock import Clock
from core.errors import MillraceError
from core.runtime.futures import completes_before_stop, run_in_daemon_thread
from core.runtime.role_lifecycle import report_ready
from core.runtime.supervised_tasks import SupervisedTasks
from topics.clients.admin import TopicAdmin
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery, RecordProducer
from topics.clients.record_fetcher import RecordFetcher
from topics.clients.start_check import check_topics, topics_of_role
from topics.clients.unreadable_partitions import UnreadablePartitions
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import REQUESTS
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, ReplicaGrants, ServiceReport, UsageReport
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader

_START_THREAD = "batcher-start"
_STOP_POLL_S = 0.1


class FaustStoppedError(MillraceError):
    """Faust stopped by itself; the batcher must be restarted."""

    code = "faust_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDeps:
    """The role's dependencies besides its settings."""

    kafka: KafkaSettings
    find_finished: FindFinishedItems | None  # None: redeliveries are not checked
    read_database_time: ReadDatabaseTime | None  # None: the database's time stays unknown
    check_commits: CheckCommits | None = None  # None: there is no database
    clock: Clock
    datadir: Path  # Faust requires a folder; nothing is kept there
    discipline: QueueDiscipline | None = None  # None: fair, by priority and deadline


async def run_batcher(settings: BatcherSettings, deps: BatcherDeps, stop: threading.Event) -> None:
    """Batch until `stop`. Raises MillraceError when the process must be restarted.

    1. Wait for the broker and check its topics. 2. Read job controls to their end, and what tenants
    were served. 3. Join the group. 4. Run. 5. Stop reading, wait for acknowledgements, leave the
    group.
    """
    admin = TopicAdmin(deps.kafka)
    check = partial(
        check_topics, admin, topics_of_role("batcher"), broker_wait_s=settings.start_timeout_s
    )
    checked = run_in_daemon_thread(check, name=_START_THREAD)
    if not await completes_before_stop(checked, stop):
        return
    batcher = Batcher(settings, deps, admin)
    try:
        if await completes_before_stop(batcher.start(), stop):
            await batcher.run(stop)
    finally:
        await batcher.shut_down()


class Batcher:
    """One running batcher; built and used on one event loop. It listens to its stream."""

    def __init__(self, settings: BatcherSettings, deps: BatcherDeps, admin: TopicAdmin) -> None:
        """Build and wire every component without connecting."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[BaseException] = self._loop.create_future()
        self._tasks = SupervisedTasks(self._loop, self.on_failure)
        self._is_connecting = self._has_joined = False

        kafka, clock, job_class = deps.kafka, deps.clock, settings.job_class
        identity = BatcherIdentity(f"{group_of(job_class)}-{uuid.uuid4().hex[:12]}", job_class)
        client_id = self._batcher_id = identity.batcher_id
        linger_ms = 1000 * STICKY_S if job_class == "bulk" else 0
        self._producer = RecordProducer(
            kafka, client_id=client_id, linger_ms=linger_ms, waits_for_partitions=True
        )
        self._dead_letters = DeadLetterSender(self._producer)
        self._controls = JobControlReader(kafka, client_id=client_id, clock=clock)
        self._callers: CallerHeartbeatReader | None = None  # None: this class has no online calls
        if job_class == "interactive":
            self._callers = CallerHeartbeatReader(kafka, client_id=client_id, clock=clock)
        self._readers = StateReaders(
            kafka,
            job_class,
            StateHandlers(
                on_capacity=self._record_capacity,
                on_grants=self._record_grants,
                on_service=self._apply_service,
                on_usage=self._apply_usage,
                on_failure=self.on_failure,
            ),
            client_id=client_id,
            call_from_thread=self._call_from_thread,
        )
        self._leads: Leads = {}  # of tenants by reports from before this start
        self._exchange = ServiceExchange(client_id, job_class)
        self._compute = ComputeModel()
        self._arrivals = PoolArrivals()
        self._clock = DatabaseClock(clock, deps.read_database_time)
        self._check_commits = deps.check_commits
        self._app = build_app(kafka, settings, deps.datadir)
        self._stream = RequestStream(self._app, kafka, job_class, self)
        self._ledger = CreditLedger(
            client_id,
            job_class,
            silence_s_max=settings.silence_s_max,
            is_reachable=lambda capacity: self._sender.is_reachable(capacity),  # noqa: PLW0108  built below
        )
        self._build_flow(identity, deps, admin)

    def _build_flow(self, identity: BatcherIdentity, deps: BatcherDeps, admin: TopicAdmin) -> None:
        """Build the components that an item passes, from its record to its batch."""
        settings, callers, discipline = self._settings, self._callers, deps.discipline
        acks = OrderedAcks(RequestStream.acknowledge)
        is_obsolete_call = None if callers is None else callers.is_obsolete
        drop_policy = DropPolicy(self._controls, self._clock, is_obsolete_call)
        obsolete_items = ObsoleteItems(acks, drop_policy)
        queues = self._queues = Queues(
            items_max=settings.held_items_max,
            bytes_max=settings.held_bytes_max,
            deferred_max=settings.deferred_records_max if settings.job_class == "bulk" else 0,
            rank=drop_policy.rank if discipline is None else discipline.rank,
            output_weight=self._compute.output_weight,
            next_tenant=PoolQueue.next_tenant if discipline is None else discipline.next_tenant,
        )
        self._record_handler = RecordHandler(
            queues,
            acks,
            obsolete_items=obsolete_items,
            find_finished=deps.find_finished,
            clock=deps.clock,
            arrivals=self._arrivals,
        )
        self._fetcher = RecordFetcher(
            deps.kafka, REQUESTS[settings.job_class], client_id=f"{identity.batcher_id}-deferred"
        )
        self._deferred_reads = DeferredReads(queues, self._record_handler, self._fetcher.fetch)
        self._sender = BatchSender(
            self._producer,
            acks,
            identity=identity,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            on_settled=self.wake,
            on_failure=self.on_failure,
            refund=self._ledger.refund,
        )
        self._dispatcher = Dispatcher(
            queues,
            self._ledger,
            self._sender,
            limits=settings.batch_limits,
            compute=self._compute,
            settle_if_obsolete=obsolete_items.settle_if_obsolete,
            clock=self._clock,
        )
        self._build_periodic(identity, deps, admin, acks, obsolete_items)

    def _build_periodic(
        self,
        identity: BatcherIdentity,
        deps: BatcherDeps,
        admin: TopicAdmin,
        acks: OrderedAcks,
        obsolete_items: ObsoleteItems,
    ) -> None:
        """Build the periodic tasks: reports, and the maintenance of queues."""
        settings, queues = self._settings, self._queues
        service = ServicePublisher(self._producer, identity)
        self._read_leads = partial(
            read_leads,
            deps.kafka,
            self._producer,
            service,
            job_class=settings.job_class,
            client_id=identity.batcher_id,
        )
        self._periodic = PeriodicTasks(
            job_class=settings.job_class,
            queues=queues,
            arrivals=self._arrivals,
            ledger=self._ledger,
            acks=acks,
            record_handler=self._record_handler,
            dispatcher=self._dispatcher,
            maintenance=QueueMaintenance(
                queues=queues,
                ledger=self._ledger,
                acks=acks,
                sender=self._sender,
                obsolete_items=obsolete_items,
                clock=self._clock,
                job_class=settings.job_class,
                hold_limit_s=settings.hold_limit_s,
            ),
            demand=DemandPublisher(self._producer, identity, self._clock.database_s),
            service=service,
            exchange=self._exchange,
            stream=self._stream,
            dead_letters=self._dead_letters,
            admin=admin,
            clock=deps.clock,
            unreadable=UnreadablePartitions(deps.kafka.partition_timeout_s),
        )

    async def start(self) -> None:
        """Read job controls, capacity and grants, join the group. Raises KafkaUnavailableError."""
        timeout_s = self._settings.start_timeout_s
        self._is_connecting = True
        await run_in_daemon_thread(partial(self._connect, timeout_s), name=_START_THREAD)
        self._tasks.start(self._clock.run())
        if self._check_commits is not None:
            self._tasks.start(watch_commits(self._check_commits, self._controls.watermarks.numbers))
        self._tasks.start(self._dispatcher.run(self._periodic.publish_new_demand))
        self._tasks.start(self._record_handler.check_redeliveries(self.wake))
        self._tasks.start(self._deferred_reads.run(self.wake))
        self._tasks.start(self._periodic.run())
        self._has_joined = True
        try:
            # Faust waits for ever when the broker rejects its session timeout.
            async with asyncio.timeout(timeout_s):
                await self._app.start()
        except TimeoutError:
            raise KafkaUnavailableError("no partitions were assigned in time") from None
        self._tasks.start(self._periodic.run_watchdog(Watchdog(self._settings.stall_limit_s)))
        report_ready()

    async def run(self, stop: threading.Event) -> None:
        """Return when `stop` is set. Raises the failure that ends the role."""
        while not stop.is_set():
            done, _ = await asyncio.wait([self._failure], timeout=_STOP_POLL_S)
            if done:
                raise self._failure.result()
            if self._stream.has_ended:
                raise FaustStoppedError

    async def shut_down(self) -> None:
        """Stop reading, wait for acknowledgements and commits, leave the group; all bounded."""
        half_s = self._settings.stop_timeout_s / 2
        self._stream.is_stopping = True
        self._tasks.cancel_all()
        await self._tasks.wait_all(half_s)
        with suppress(MillraceError):
            self._periodic.demand.publish({})  # replicas grant the credit to others at once
            await asyncio.to_thread(self._producer.flush, half_s)
        await asyncio.sleep(0)  # the last acknowledgements are settled on this loop
        if self._has_joined:
            with suppress(TimeoutError):
                async with asyncio.timeout(half_s):
                    await self._app.consumer.commit()
                    await self._app.stop()
        if not self._is_connecting:  # else an abandoned thread still uses the connections
            await asyncio.to_thread(self._disconnect)

    def on_record(self, record: ReceivedRecord, event: Any) -> None:
        """Buffer the chunk of a record that Faust delivered."""
        self._record_handler.handle_record(
            record,
            event,
            report_unreadable=self._report_unreadable,
            settle=self._sender.settle_on_delivery,
        )
        self.wake()

    async def wait_until_ready(self) -> None:
        """Return once the queues accept another record."""
        await self._dispatcher.wait_until_not_full()

    def on_assign(self, end_offsets: Mapping[Partition, int]) -> None:
        """Note up to which offset the records of new partitions may have been dispatched before."""
        restore_service(self._queues, self._leads, now_s=self._clock.monotonic_s())
        self._leads = {}
        self._record_handler.on_assign(end_offsets)

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Drop the chunks of revoked partitions: their next owner reads them again."""
        self._dead_letters.discard(partitions)
        self._record_handler.on_revoke(partitions)
        self.wake()

    def on_failure(self, failure: BaseException) -> None:
        """End the role: `run` raises the first failure."""
        if not self._failure.done():
            self._failure.set_result(failure)

    def wake(self) -> None:
        """Dispatch soon; called on the event loop."""
        self._dispatcher.wake()

    def _connect(self, timeout_s: float) -> None:
        """Read job controls, callers, capacity, grants and leads; blocks.

        Raises KafkaUnavailableError.
        """
        try:
            self._controls.start(timeout_s)
            if self._callers is not None:
                self._callers.start(timeout_s)
            self._readers.start(timeout_s)
            self._leads = self._read_leads()
            self._stream.remove_predecessor()
        finally:
            self._is_connecting = False

    def _disconnect(self) -> None:
        """Close every connection but Faust's; blocks."""
        self._readers.stop()
        self._fetcher.close()
        if self._callers is not None:
            self._callers.stop()
        self._controls.stop()
        self._producer.close(1.0)

    def _record_capacity(self, capacities: list[Capacity]) -> None:
        now_s = self._clock.monotonic_s()
        for capacity in capacities:
            self._ledger.record_capacity(capacity, now_s=now_s)
            self._compute.record_capacity(capacity)
        self.wake()

    def _record_grants(self, newest: list[ReplicaGrants]) -> None:
        now_s = self._clock.monotonic_s()
        for grants in newest:
            self._ledger.record_grants(grants, now_s=now_s)
        self.wake()

    def _apply_service(self, reports: list[ServiceReport]) -> None:
        now_s = self._clock.monotonic_s()
        for report in reports:
            charge_remote_service(self._queues, self._exchange.apply(report, now_s=now_s))

    def _apply_usage(self, reports: list[UsageReport]) -> None:
        for report in reports:
            if report.job_class == self._settings.job_class:
                charge_corrections(self._queues, report, batcher_id=self._batcher_id)

    def _report_unreadable(self, record: ReceivedRecord, on_delivery: OnDelivery) -> int:
        sent = send_unreadable(self._producer, self._dead_letters, record, on_delivery)
        self._stream.pause_only(self._dead_letters.waiting_partitions)
        return sent

    def _call_from_thread(self, call: Callable[[Any], None], argument: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self._tasks.call_from_thread(call, argument)
