"""What a batcher is made of, and how its parts are wired; nothing is connected here."""

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import faust

from batcher.database_clock import DatabaseClock, ReadDatabaseTime
from batcher.faust_app.app import RequestStream, StreamOwner, build_app, group_of
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.inbound.record_handler import RecordHandler
from batcher.inbound.redelivered_items import FindFinishedItems
from batcher.outbound.batch_sender import BatcherIdentity, BatchSender
from batcher.outbound.capacity_reader import CapacityReader, DemandPublisher
from batcher.outbound.dispatcher import Dispatcher, DispatchRules
from batcher.periodic import PeriodicTasks
from batcher.policy.batch_closing import BatchLimits
from batcher.policy.credits import CreditLedger
from batcher.policy.sticky_partitioner import STICKY_S
from batcher.queueing.controlled import Controlled
from batcher.queueing.drop_policy import LettingGo, OverJobs
from batcher.queueing.maintenance import QueueMaintenance
from batcher.queueing.queues import Queues
from batcher.settings import BatcherSettings
from core.clock import Clock
from topics.clients.admin import LogAdmin
from topics.clients.producer import LogProducer
from topics.records.records import Capacity, JobRef
from topics.settings import KafkaSettings
from topics.tail_readers.callers import Callers
from topics.tail_readers.job_controls import JobControls


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherDeps:
    """What the role is given besides its settings."""

    kafka: KafkaSettings
    finished: FindFinishedItems | None  # None: redeliveries are not checked
    ask_time: ReadDatabaseTime | None  # None: the database's time is never known
    clock: Clock
    datadir: Path  # Faust insists on a folder; nothing is kept there


class RoleCallbacks(StreamOwner, Protocol):
    """Who the parts report to."""

    def wake(self) -> None:
        """Something may be dispatched now; called on the event loop."""
        ...

    def heard(self, news: list[Capacity]) -> None:
        """Replicas said what they can take; called in a thread."""
        ...

    def feed_failed(self, failure: BaseException) -> None:
        """Capacity is not followed any more; called in a thread."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatcherComponents:
    """The parts that begin, work and end with the role."""

    producer: LogProducer
    controls: JobControls
    callers: Callers | None  # None: this class has no online calls
    feed: CapacityReader
    ledger: CreditLedger
    time: DatabaseClock
    sender: BatchSender
    queues: Queues
    dispatcher: Dispatcher
    arrivals: RecordHandler
    app: faust.App
    stream: RequestStream
    clockwork: PeriodicTasks

    def connect(self, timeout_s: float) -> None:
        """Read control, follow calls and capacity; blocks. Raises LogUnavailableError."""
        self.controls.start(timeout_s)
        if self.callers is not None:
            self.callers.start(timeout_s)
        self.feed.start(timeout_s)
        self.stream.succeed()

    def close(self) -> None:
        """End every connection but Faust's; blocks."""
        self.feed.stop()
        if self.callers is not None:
            self.callers.stop()
        self.controls.stop()
        self.producer.close(1.0)


def build_components(
    settings: BatcherSettings, surroundings: BatcherDeps, admin: LogAdmin, owner: RoleCallbacks
) -> BatcherComponents:
    """Build and wire every part around `owner`; call it on the role's event loop."""
    kafka, clock, job_class = surroundings.kafka, surroundings.clock, settings.job_class
    identity = BatcherIdentity(f"{group_of(job_class)}-{uuid.uuid4().hex[:12]}", job_class)
    batcher_id = identity.batcher_id
    linger_ms = 1000 * STICKY_S if job_class == "bulk" else 0
    producer = LogProducer(kafka, client_id=batcher_id, linger_ms=linger_ms)
    controls = JobControls(kafka, client_id=batcher_id, clock=clock)
    time = DatabaseClock(clock, surroundings.ask_time)
    controlled = Controlled(controls, time)
    callers = None
    if job_class == "interactive":
        callers = Callers(kafka, client_id=batcher_id, clock=clock)
    over = OverJobs(controlled.over, callers.is_unwanted if callers else _is_never_gone)
    acks = OrderedAcks(RequestStream.acknowledge)
    core = _Core(
        queues=Queues(
            items_max=settings.held_items_max,
            bytes_max=settings.held_bytes_max,
            rank=controlled.rank,
        ),
        ledger=CreditLedger(batcher_id, job_class, silence_s_max=settings.silence_s_max),
        acks=acks,
        letting_go=LettingGo(acks, over),
        sender=BatchSender(
            producer,
            acks,
            identity=identity,
            in_flight_bytes_max=settings.in_flight_bytes_max,
            on_settled=owner.wake,
            on_failure=owner.failed,
        ),
        clock=time,
    )
    app = build_app(kafka, settings, surroundings.datadir)
    dispatcher = core.dispatcher(settings)
    arrivals = RecordHandler(
        core.queues, acks, over=over, finished=surroundings.finished, clock=clock
    )
    stream = RequestStream(app, kafka, job_class, owner)
    return BatcherComponents(
        producer=producer,
        controls=controls,
        time=time,
        callers=callers,
        feed=CapacityReader(
            kafka, client_id=batcher_id, deliver=owner.heard, on_failure=owner.feed_failed
        ),
        ledger=core.ledger,
        sender=core.sender,
        queues=core.queues,
        dispatcher=dispatcher,
        arrivals=arrivals,
        app=app,
        stream=stream,
        clockwork=PeriodicTasks(
            job_class=job_class,
            queues=core.queues,
            ledger=core.ledger,
            acks=acks,
            arrivals=arrivals,
            dispatcher=dispatcher,
            sweeper=core.sweeper(settings),
            demand=DemandPublisher(producer, identity, time.database_s),
            stream=stream,
            admin=admin,
            clock=clock,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """What nearly every part needs."""

    queues: Queues
    ledger: CreditLedger
    acks: OrderedAcks
    letting_go: LettingGo
    sender: BatchSender
    clock: Clock

    def dispatcher(self, settings: BatcherSettings) -> Dispatcher:
        return Dispatcher(
            self.queues,
            self.ledger,
            self.sender,
            rules=rules_of(settings),
            let_go=self.letting_go.let_go,
            clock=self.clock,
        )

    def sweeper(self, settings: BatcherSettings) -> QueueMaintenance:
        return QueueMaintenance(
            queues=self.queues,
            ledger=self.ledger,
            acks=self.acks,
            sender=self.sender,
            letting_go=self.letting_go,
            clock=self.clock,
            job_class=settings.job_class,
            hold_limit_s=settings.hold_limit_s,
        )


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


def _is_never_gone(_job: JobRef, /, *, since_s: float) -> bool:
    """Say of an item of a batch that it has no caller."""
    return False
