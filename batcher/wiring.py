"""Builds and wires the components of a batcher; connects to nothing."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import faust

from batcher.database_clock import DatabaseClock, ReadDatabaseTime
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.faust_app.request_stream import RequestStream, StreamListener, build_app, group_of
from batcher.inbound.record_handler import RecordHandler
from batcher.inbound.redelivered_items import FindFinishedItems
from batcher.outbound.batch_sender import BatcherIdentity, BatchSender
from batcher.outbound.capacity_reader import CapacityReader, DemandPublisher
from batcher.outbound.dispatcher import Dispatcher, DispatchRules
from batcher.periodic import PeriodicTasks
from batcher.policy.batch_closing import BatchLimits
from batcher.policy.credits import CreditLedger
from batcher.policy.sticky_partitioner import STICKY_S
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.queues import Queues
from batcher.settings import BatcherSettings
from core.clock import Clock
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.records import Capacity
from topics.settings import KafkaSettings
from topics.tail_readers.caller_heartbeats import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDeps:
    """The role's dependencies besides its settings."""

    kafka: KafkaSettings
    find_finished: FindFinishedItems | None  # None: redeliveries are not checked
    read_database_time: ReadDatabaseTime | None  # None: the database's time stays unknown
    clock: Clock
    datadir: Path  # Faust requires a folder; nothing is kept there


class RoleCallbacks(StreamListener, Protocol):
    """Calls from the components to the role."""

    def wake(self) -> None:
        """Something may be dispatched now; called on the event loop."""
        ...

    def on_capacity(self, capacities: list[Capacity]) -> None:
        """Replicas published their capacity; called in a thread."""
        ...

    def on_reader_failure(self, failure: BaseException) -> None:
        """Capacity is not read any more; called in a thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherComponents:
    """The components that start, run and stop with the role."""

    producer: RecordProducer
    controls: JobControlReader
    callers: CallerHeartbeatReader | None  # None: this class has no online calls
    capacity_reader: CapacityReader
    ledger: CreditLedger
    time: DatabaseClock
    sender: BatchSender
    dispatcher: Dispatcher
    record_handler: RecordHandler
    app: faust.App
    stream: RequestStream
    periodic: PeriodicTasks

    def connect(self, timeout_s: float) -> None:
        """Read job controls, callers and capacity; blocks. Raises KafkaUnavailableError."""
        self.controls.start(timeout_s)
        if self.callers is not None:
            self.callers.start(timeout_s)
        self.capacity_reader.start(timeout_s)
        self.stream.remove_predecessor()

    def close(self) -> None:
        """Close every connection but Faust's; blocks."""
        self.capacity_reader.stop()
        if self.callers is not None:
            self.callers.stop()
        self.controls.stop()
        self.producer.close(1.0)


def build_components(
    settings: BatcherSettings, deps: BatcherDeps, admin: TopicAdmin, role: RoleCallbacks
) -> BatcherComponents:
    """Build and wire every component around `role`; call it on the role's event loop."""
    kafka, clock, job_class = deps.kafka, deps.clock, settings.job_class
    identity = BatcherIdentity(f"{group_of(job_class)}-{uuid.uuid4().hex[:12]}", job_class)
    batcher_id = identity.batcher_id
    linger_ms = 1000 * STICKY_S if job_class == "bulk" else 0
    producer = RecordProducer(kafka, client_id=batcher_id, linger_ms=linger_ms)
    controls = JobControlReader(kafka, client_id=batcher_id, clock=clock)
    time = DatabaseClock(clock, deps.read_database_time)
    callers = None
    if job_class == "interactive":
        callers = CallerHeartbeatReader(kafka, client_id=batcher_id, clock=clock)
    drop_policy = DropPolicy(controls, time, callers.is_obsolete if callers else None)
    acks = OrderedAcks(RequestStream.acknowledge)
    shared = _Shared(
        queues=_queues(settings, drop_policy),
        ledger=CreditLedger(batcher_id, job_class, silence_s_max=settings.silence_s_max),
        acks=acks,
        obsolete_items=ObsoleteItems(acks, drop_policy),
        sender=BatchSender(
            producer,
            acks,
            identity=identity,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            on_settled=role.wake,
            on_failure=role.on_failure,
        ),
        clock=time,
    )
    app = build_app(kafka, settings, deps.datadir)
    dispatcher = shared.dispatcher(settings)
    record_handler = RecordHandler(
        shared.queues, acks, drop_policy=drop_policy, find_finished=deps.find_finished, clock=clock
    )
    stream = RequestStream(app, kafka, job_class, role)
    return BatcherComponents(
        producer=producer,
        controls=controls,
        time=time,
        callers=callers,
        capacity_reader=CapacityReader(
            kafka,
            client_id=batcher_id,
            on_capacity=role.on_capacity,
            on_failure=role.on_reader_failure,
        ),
        ledger=shared.ledger,
        sender=shared.sender,
        dispatcher=dispatcher,
        record_handler=record_handler,
        app=app,
        stream=stream,
        periodic=PeriodicTasks(
            job_class=job_class,
            queues=shared.queues,
            ledger=shared.ledger,
            acks=acks,
            record_handler=record_handler,
            dispatcher=dispatcher,
            maintenance=shared.maintenance(settings),
            demand=DemandPublisher(producer, identity, time.database_s),
            stream=stream,
            admin=admin,
            clock=clock,
        ),
    )


def _queues(settings: BatcherSettings, drop_policy: DropPolicy) -> Queues:
    return Queues(
        items_max=settings.held_items_max,
        bytes_max=settings.held_bytes_max,
        rank=drop_policy.rank,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shared:
    """Components that most others use."""

    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    obsolete_items: ObsoleteItems
    sender: BatchSender
    clock: Clock

    def dispatcher(self, settings: BatcherSettings) -> Dispatcher:
        return Dispatcher(
            self.queues,
            self.ledger,
            self.sender,
            rules=rules_of(settings),
            settle_if_obsolete=self.obsolete_items.settle_if_obsolete,
            clock=self.clock,
        )

    def maintenance(self, settings: BatcherSettings) -> QueueMaintenance:
        return QueueMaintenance(
            queues=self.queues,
            ledger=self.ledger,
            acks=self.acks,
            sender=self.sender,
            obsolete_items=self.obsolete_items,
            clock=self.clock,
            job_class=settings.job_class,
            hold_limit_s=settings.hold_limit_s,
        )


def rules_of(settings: BatcherSettings) -> DispatchRules:
    """Return the dispatcher's rules."""
    limits = BatchLimits(
        item_count_max=settings.batch_items_max,
        token_count_max=settings.batch_tokens_max,
        wait_s_max=settings.wait_s_max,
        slack_s_min=settings.slack_s_min,
    )
    return DispatchRules(limits=limits, batch_s_max=settings.batch_s_max)
