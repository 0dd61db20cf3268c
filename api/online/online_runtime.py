"""The parts of an API process that serve online calls, started and stopped together."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, TypeAlias
from uuid import UUID

from api.online import metrics
from api.online.admit.admission import ExecutionTimes, PoolStates, RateLimits
from api.online.admit.call_admission import CallAdmission
from api.online.admit.model_cache import ModelCache
from api.online.admit.pool_demand import PoolDemand
from api.online.admit.pool_wakes import PoolWakes
from api.online.admit.sleeping_pools import SleepingPools
from api.online.admit.token_charges import TokenCharges
from api.online.admit.waiting_tenants import WaitingTenants
from api.online.answer.response_cache import ResponseCache
from api.online.await_reply.caller_heartbeat import CallerClock, CallerHeartbeatPublisher
from api.online.await_reply.open_calls import OpenCalls
from api.online.call_errors import deadline_exceeded, job_cancelled
from api.online.durable.durable_calls import DurableCalls
from api.online.memory_limits import recording_memory_limit
from api.online.refusal_recorder import ModelRefusalRecorder
from api.online.scaling_reader import Handle, ScalingReader
from api.online.send.api_load import ApiLoadPublisher
from api.online.send.call_keys import CallKeys
from api.online.send.call_sender import CALLERS_PLACE, CallSender, LargeBodies, LogHealth
from api.online.send.wake_requests import WakeRequests, send_backlog
from api.online.served_shares import ServedShares, newest_reports
from api.online.settings import OnlineSettings
from api.runtime.api_services import Services
from api.runtime.database import DatabaseUnavailableError
from core.bodies.body_limit_settings import DEFAULT_BODY_LIMITS, BodyLimits
from core.clock import Clock
from core.errors import MillraceError, RecordUnreadableError
from core.ids import new_uuid
from core.runtime.futures import run_in_daemon_thread
from core.runtime.supervised_tasks import report_failure, supervise
from core.states import CloseReason
from jobs.estimates.pool_rates import PoolRates
from jobs.expansion.pool_capacity import POLL_INTERVAL_S
from topics.clients.missing_topics import MISSING_TOPIC_S_MAX
from topics.clients.producer import RecordProducer
from topics.records.catalogue import (
    CAPACITY,
    CONTROL,
    DEMAND,
    REPLIES,
    SCALING,
    SERVICE,
    Topic,
)
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import JobControl, Record, Replies
from topics.settings import KafkaSettings
from topics.tail_readers.commit_watermarks import LogWatermarks
from topics.tail_readers.tail_reader_thread import TailReaderThread, decode_records
from topics.tail_readers.topic_tail_reader import TopicTailReader

_LOG = logging.getLogger(__name__)

_CLEAN_UP_S_MAX: Final = 3.0  # the process's supervisor may not wait long
_FLUSH_S_MAX: Final = 2.0  # the tail threads stop meanwhile
_TAIL_STOP_S_MAX: Final = 2.0  # a thread that needs longer is abandoned
_CHECK_S: Final = 0.25
_POOL_DEAD_S: Final = 8.0
"""Silence of all replicas of a pool from which their executions are lost. Replicas report at least
every second, and the consumer group removes a member after 6 s by default."""
_UNRELIABLE_S: Final = 1.0
"""Age of an unacknowledged heartbeat, or delay of this process's own check, from which the silence
of others may be this process's fault."""

ClosedJob: TypeAlias = tuple[UUID, CloseReason]


@dataclass(frozen=True, slots=True)
class OnlineDeps:
    """What online calls need in addition to the services of every API process."""

    settings: OnlineSettings
    kafka: KafkaSettings
    on_failure: Callable[[MillraceError], None]  # from any thread: the process must stop
    body_limits: BodyLimits = DEFAULT_BODY_LIMITS


class OnlineRuntime:
    """Serves online calls in one process; its caller id is new at each start."""

    def __init__(self, deps: OnlineDeps, services: Services, clock: Clock) -> None:
        settings = deps.settings
        self.settings, self.services, self.clock = settings, services, clock
        self.body_limits = deps.body_limits
        self.caller_clock = CallerClock(clock)
        recordings = recording_memory_limit(settings.recordings_bytes_max)
        self.durable = DurableCalls(services, clock, recordings)
        self.cache = ResponseCache(clock, bytes_max=settings.cache_bytes_max)
        self.caller_id = f"api-{new_uuid().hex}"
        self.call_keys = CallKeys(services.objects, clock, self.caller_id)
        digest = blake2b(self.caller_id.encode(), digest_size=8).digest()
        self.reply_partition = int.from_bytes(digest) % REPLIES.partition_count
        self.models = ModelCache(services.database, clock)
        self.calls = OpenCalls(buffer_bytes_max=settings.stream_buffer_bytes)
        self.bodies = LargeBodies(services.objects)
        self.charges = TokenCharges(
            RateLimits(
                requests_per_minute=settings.requests_per_minute,
                tokens_per_minute=settings.tokens_per_minute,
            )
        )
        self.pools = PoolStates(since_s=clock.monotonic_s())
        self.bulk_rates = PoolRates()
        """For estimates of batches: their replicas publish on the same topic."""
        self.demand = PoolDemand()
        self.waiting = WaitingTenants()
        self.execution = ExecutionTimes()
        self.refusals = ModelRefusalRecorder(services.database, self.pools, clock)
        self.served = ServedShares()
        self.admission = CallAdmission(
            settings, self.calls, self.pools, self.demand, self.waiting, self.execution
        )
        self.wakes = PoolWakes(clock)

        def has_autoscaler() -> bool:
            return self.wakes.has_autoscaler

        self.wake_requests = WakeRequests(
            self.caller_id, clock, self._send_backlog, is_needed=has_autoscaler
        )
        self.sleeping = SleepingPools(
            settings, self.pools, self.wakes, self.wake_requests.note_call
        )
        self.load = ApiLoadPublisher(
            self.caller_id,
            clock,
            self._send_backlog,
            lambda: self.calls.count,
            is_needed=has_autoscaler,
        )
        self._deps = deps
        self._health = LogHealth(clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._unreliable_s = -math.inf  # when silence of others last was this process's fault

    @property
    def is_ready(self) -> bool:
        """Whether every reply and close will be read, and the log accepts records."""
        reads = all(tail.is_caught_up for tail in self._tails) and self._scaling.is_settled
        return reads and self.heartbeat.is_acknowledged

    def unavailable_partitions(self) -> list[str]:
        """Return the partitions that this process cannot write or cannot read, as `topic/number`.

        Of those that it writes, they are named once records wait for them.
        """
        found = set(self._producer.unavailable_partitions())
        found.update(*(tail.unreadable_partitions for tail in self._tails))
        return [f"{topic}/{number}" for topic, number in sorted(found)]

    def start(self) -> None:
        """Start reading the log and publishing the heartbeat. Call it on the event loop."""
        kafka = self._deps.kafka
        loop = asyncio.get_running_loop()
        self._producer = RecordProducer(
            kafka,
            client_id=self.caller_id,
            linger_ms=0,
            full_queue_wait_s=0,
            waits_for_partitions=True,
        )
        self.sender = CallSender(
            self._producer, self._health, patience_s=self.settings.log_patience_s
        )
        self.heartbeat = CallerHeartbeatPublisher(
            self._producer, self.caller_id, self.caller_clock, self._health
        )

        self._build_tails(loop)
        for tail in (*self._tails, self._service_tail):
            tail.start_at_end()
        self._scaling.start()
        coroutines = (
            self.heartbeat.run(self.calls.fail_unanswered),
            self.models.refresh_periodically(self.settings.routes_refresh_s),
            self.cache.refresh_periodically(self.services.database, self.settings.routes_refresh_s),
            self._check_calls_periodically(),
            self.call_keys.run(),
            self.refusals.run(),
            self.wake_requests.run(),
            self.load.meter.run(),
            self.load.run(),
            self._scaling.run(),
        )
        self._tasks = [
            supervise(loop.create_task(coroutine), self._deps.on_failure)
            for coroutine in coroutines
        ]

    def _build_tails(self, loop: asyncio.AbstractEventLoop) -> None:
        """Build the readers of topics, which run in threads."""

        def read_replies(records: list[ReceivedRecord]) -> None:
            if replies := decode_replies(records, self.caller_id):
                loop.call_soon_threadsafe(self._receive_replies, replies)

        def read_control(records: list[ReceivedRecord]) -> None:
            if closed := decode_closed_jobs(records, self.services.commits.log):
                loop.call_soon_threadsafe(self._end_closed_jobs, closed)

        def read_capacity(records: list[ReceivedRecord]) -> None:
            now_s = self.clock.monotonic_s()
            self.pools.apply_records(records, now_s=now_s)
            if self.bulk_rates.is_due(now_s):
                self.bulk_rates.add_sample(self.pools.reports(now_s=now_s), now_s=now_s)

        def read_service(records: list[ReceivedRecord]) -> None:
            reports, now_s = newest_reports(records), self.clock.monotonic_s()
            self.waiting.apply(reports, now_s=now_s)
            self.served.apply(reports, now_s=now_s)

        def read_demand(records: list[ReceivedRecord]) -> None:
            self.demand.apply_records(records, now_s=self.clock.monotonic_s())

        self._tails = (
            self._tail_thread(
                REPLIES, read_replies, name="replies", partitions=[self.reply_partition]
            ),
            self._tail_thread(
                CAPACITY, read_capacity, name="capacity", poll_interval_s=POLL_INTERVAL_S
            ),
            self._tail_thread(DEMAND, read_demand, name="demand", poll_interval_s=POLL_INTERVAL_S),
            self._tail_thread(CONTROL, read_control, name="control"),
        )
        # Without it only the calls that are open here count, so readiness does not wait for it.
        self._service_tail = self._tail_thread(
            SERVICE, read_service, name="service", poll_interval_s=POLL_INTERVAL_S
        )

        def build(handle: Handle, fail: Callable[[Exception], None]) -> TailReaderThread:
            return self._tail_thread(
                SCALING, handle, name="scaling", reads_whole_topic=True, on_failure=fail
            )

        self._scaling = ScalingReader(build, self.wakes.apply_records, self.clock)

    async def stop(self) -> None:
        """Publish the last heartbeat and stop everything that `start` started."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.heartbeat.publish(leaving=True)
        await self._clean_up()
        # not queued after a hanging store
        await run_in_daemon_thread(self._close, name="online-close")

    async def _clean_up(self) -> None:
        """Bill cache hits and destroy data keys, within a time limit."""

        async def bill_cache_hits() -> None:
            with suppress(DatabaseUnavailableError):
                await self.cache.bill(self.services.database)

        with suppress(TimeoutError):  # the orphan sweep finds keys that are left
            async with asyncio.timeout(_CLEAN_UP_S_MAX):
                await asyncio.gather(bill_cache_hits(), self.call_keys.stop())

    def _tail_thread(  # noqa: PLR0913  each one is an option
        self,
        topic: Topic,
        handle: Callable[[list[ReceivedRecord]], None],
        *,
        name: str,
        partitions: list[int] | None = None,
        poll_interval_s: float = 0.0,
        reads_whole_topic: bool = False,
        on_failure: Callable[[MillraceError], None] | None = None,
    ) -> TailReaderThread:
        """Return a thread that reads a topic and retries while a broker restarts."""
        return TailReaderThread(
            TopicTailReader(
                self._deps.kafka,
                topic,
                client_id=f"{self.caller_id}-{name}",
                partitions=partitions,
                reset_to_earliest=reads_whole_topic,
                poll_interval_s=poll_interval_s,
            ),
            handle,
            name=f"{name}-tail",
            unavailable_s_max=MISSING_TOPIC_S_MAX,
            stop_s_max=_TAIL_STOP_S_MAX,
            on_failure=partial(
                report_failure, name=f"{name}-tail", on_failure=on_failure or self._deps.on_failure
            ),
        )

    def _close(self) -> None:
        tails = (*self._tails, self._service_tail, self._scaling)
        for tail in tails:
            tail.request_stop()
        self._producer.close(_FLUSH_S_MAX)
        for tail in tails:
            tail.stop()

    def _send_backlog(self, key: bytes, record: Record) -> None:
        send_backlog(self._producer, key, record)

    def _receive_replies(self, records: list[Replies]) -> None:
        now_s = self.clock.monotonic_s()
        for record in records:
            self.pools.replicas.record_replies(record.replica_id, now_s=now_s)
            self.calls.receive_replies(record.replies, replica_id=record.replica_id, now_s=now_s)
            self.charges.receive_replies(record.replies, now_s=now_s)
            for request_id in record.questions:
                self._decide_rerun(request_id, now_s=now_s)

    def _decide_rerun(self, request_id: UUID, *, now_s: float) -> None:
        """Permit or abort a call that was delivered a second time, or wait for its next reply."""
        call = self.calls.find(request_id)
        if self.calls.decide_rerun(request_id, now_s=now_s):
            answer = "may_run"
            self.heartbeat.permit_rerun(request_id)
        elif call is None or call.has_ended:
            answer = "over"
            self.heartbeat.abort_call(request_id)
        else:
            answer = "not_answered"
        metrics.QUESTIONS.labels(answer).inc()

    def _end_closed_jobs(self, jobs: list[ClosedJob]) -> None:
        """End the calls that wait for a job that some process has closed."""
        for job_id, reason in jobs:
            call = self.calls.find(job_id)
            if call is not None:
                is_expired = reason is CloseReason.EXPIRED
                call.fail(deadline_exceeded() if is_expired else job_cancelled())

    async def _check_calls_periodically(self) -> None:
        before_s = self.clock.monotonic_s()
        while True:
            now_s = self.clock.monotonic_s()
            if max(self._health.oldest_pending_s(CALLERS_PLACE), now_s - before_s) > _UNRELIABLE_S:
                self._unreliable_s = now_s
            before_s = now_s
            self.calls.check_streams(
                now_s=now_s,
                keep_alive_s=self.settings.keep_alive_s,
                slow_reader_s=self.settings.slow_reader_s,
            )
            self.calls.fail_silent_executions(now_s=now_s)
            self.sender.fail_waiting_calls()
            self.calls.fail_calls_of_dead_pools(partial(self._is_pool_dead, now_s=now_s))
            self.calls.fail_calls_of_lost_replicas(
                partial(self.pools.replicas.is_lost, now_s=now_s, unreliable_s=self._unreliable_s)
            )
            self.sleeping.forget_woken(now_s=now_s)
            self.admission.publish_metrics(now_s=now_s)
            await asyncio.sleep(_CHECK_S)

    def _is_pool_dead(self, pool: str, *, now_s: float) -> bool:
        return now_s - max(self.pools.last_seen_s(pool), self._unreliable_s) > _POOL_DEAD_S


def decode_replies(records: list[ReceivedRecord], caller_id: str) -> list[Replies]:
    """Return the replies to a caller. Those to other callers are skipped by a header."""
    header = ("caller", caller_id.encode())
    found: list[Replies] = []
    for record in records:
        if header not in record.headers:
            continue
        try:
            found.append(decode(Replies, record.value, record.headers))
        except RecordUnreadableError:
            _LOG.exception("unreadable replies", extra={"offset": record.offset})
    return found


def decode_closed_jobs(records: list[ReceivedRecord], watermarks: LogWatermarks) -> list[ClosedJob]:
    """Return the jobs that the records of `control` close, and apply its watermarks.

    Raises SchemaTooNewError.
    """
    return [
        (control.job_id, control.closed)
        for _, control in decode_records(JobControl, records)
        if control is not None and not watermarks.apply(control) and control.closed is not None
    ]
