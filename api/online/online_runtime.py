"""The online half of an API process: what its parts share, begun and ended together."""

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final
from uuid import UUID

from api.online import metrics
from api.online.admit.model_cache import ModelCache
from api.online.admit.pool_states import ExecutionTimes, PoolStates
from api.online.admit.rate_limits import RateLimits
from api.online.admit.recording_room import RecordingRoom
from api.online.answer.response_cache import ResponseCache
from api.online.await_reply.caller_clock import CallerClock
from api.online.await_reply.caller_heartbeat import CallerHeartbeat
from api.online.await_reply.closed_jobs import ClosedJob, JobCloseReader, close_error
from api.online.await_reply.open_calls import OpenCalls
from api.online.await_reply.topic_tail_threads import ReplyReader, TopicTailThread
from api.online.durable.durable_calls import DurableCalls
from api.online.send.call_keys import CallKeys
from api.online.send.call_sender import CallSender
from api.online.send.large_bodies import LargeBodies
from api.online.send.log_health import LogHealth
from api.online.settings import OnlineSettings
from api.runtime.background import supervise
from api.runtime.database import DatabaseUnavailableError
from api.runtime.services import Services
from core.clock import Clock
from core.errors import MillraceError
from core.futures import in_daemon
from core.ids import new_uuid
from topics.clients.producer import LogProducer
from topics.records.catalogue import CAPACITY, CONTROL, REPLIES
from topics.records.received import Received
from topics.records.records import Replies
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail import TopicTail

_LOG = logging.getLogger(__name__)

_SETTLE_S_MAX: Final = 3.0  # its supervisor may not wait long
_FLUSH_S_MAX: Final = 2.0  # tails end meanwhile
_SWEEP_S: Final = 0.25
_POOL_DEAD_S: Final = 8.0
"""Silence of all replicas of a pool after which what they had begun ends as interrupted. They speak
at least every second, and the log itself gives up a member after 6 s by default."""
_DEAF_S: Final = 1.0
"""A log that owes us an acknowledgement for this long, or a sweep this late: we may be deaf."""


@dataclass(frozen=True, slots=True)
class OnlineDeps:
    """What a process with online calls needs beside what every API has."""

    settings: OnlineSettings
    kafka: KafkaSettings
    on_failure: Callable[[MillraceError], None]  # in any thread: the process cannot go on


class OnlineRuntime:
    """One replica among those that take calls; its id is new at each start."""

    def __init__(self, setup: OnlineDeps, services: Services, clock: Clock) -> None:
        """Connect to nothing yet."""
        settings = setup.settings
        self.settings, self.services, self.clock = settings, services, clock
        self.caller_clock = CallerClock(clock)
        recordings = RecordingRoom(settings.recordings_bytes_max)
        self.durable = DurableCalls(services, clock, recordings)
        self.cache = ResponseCache(clock, bytes_max=settings.cache_bytes_max)
        self.caller_id = f"api-{new_uuid().hex}"
        self.call_keys = CallKeys(services.objects, clock, self.caller_id)
        self.reply_partition = _partition_of(self.caller_id)
        self.routes = ModelCache(services.database, clock)
        self.calls = OpenCalls(buffer_bytes_max=settings.stream_buffer_bytes)
        self.bodies = LargeBodies(services.objects)
        self.limits = RateLimits(
            requests_per_minute=settings.requests_per_minute,
            tokens_per_minute=settings.tokens_per_minute,
        )
        self.pools = PoolStates(since_s=clock.monotonic_s())
        self.execution = ExecutionTimes()
        self._setup = setup
        self._health = LogHealth(clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._deaf_s = -math.inf  # when others were not to be heard, through no fault of theirs

    @property
    def is_ready(self) -> bool:
        """Whether no reply and no close can be missed, and the log takes what is sent."""
        return all(tail.is_positioned for tail in self._tails) and self.news.was_heard

    @property
    def _tails(self) -> tuple[TopicTailThread, ...]:
        return self._replies, self._capacity, self._control

    def start(self) -> None:
        """Begin to follow the log and to say that this process lives; call it on the loop."""
        kafka = self._setup.kafka
        loop = asyncio.get_running_loop()
        self._producer = LogProducer(
            kafka, client_id=self.caller_id, linger_ms=0, full_queue_wait_s=0
        )
        self.sender = CallSender(
            self._producer, self._health, patience_s=self.settings.log_patience_s
        )
        self.news = CallerHeartbeat(self._producer, self.caller_id, self.caller_clock, self._health)
        reader = ReplyReader(self.caller_id, loop, self._hear)
        self._replies = TopicTailThread(
            TopicTail(
                kafka,
                REPLIES,
                client_id=f"{self.caller_id}-replies",
                partitions=[self.reply_partition],
                past_counts=False,
            ),
            "replies-tail",
            reader.take,
            self._setup.on_failure,
        )
        self._capacity = TopicTailThread(
            TopicTail(kafka, CAPACITY, client_id=f"{self.caller_id}-capacity", past_counts=False),
            "capacity-tail",
            self._hear_capacity,
            self._setup.on_failure,
        )
        self._control = TopicTailThread(
            TopicTail(kafka, CONTROL, client_id=f"{self.caller_id}-control", past_counts=False),
            "control-tail",
            JobCloseReader(loop, self._hear_closed).take,
            self._setup.on_failure,
        )
        for tail in self._tails:
            tail.start()
        works = (
            self.news.run(self._lost_touch),
            self.routes.keep_fresh(self.settings.routes_refresh_s),
            self.cache.keep_fresh(self.services.database, self.settings.routes_refresh_s),
            self._sweep(),
            self.call_keys.run(),
        )
        self._tasks = [supervise(loop.create_task(work), self._setup.on_failure) for work in works]

    async def stop(self) -> None:
        """Say good-bye and end what `start` began."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.news.say(leaving=True)
        await self._settle()
        await in_daemon(self._close, name="online-close")  # not behind a store that hangs

    async def _settle(self) -> None:
        """Bill what was given again and destroy keys, as far as that is done soon."""
        with suppress(TimeoutError):  # the sweep finds keys that are left
            async with asyncio.timeout(_SETTLE_S_MAX):
                await asyncio.gather(self._bill(), self.call_keys.stop())

    async def _bill(self) -> None:
        with suppress(DatabaseUnavailableError):
            await self.cache.bill(self.services.database)

    def _close(self) -> None:
        for tail in self._tails:
            tail.tell_to_stop()
        self._producer.close(_FLUSH_S_MAX)
        for tail in self._tails:
            tail.stop()

    def _hear(self, records: list[Replies]) -> None:
        now_s = self.clock.monotonic_s()
        for record in records:
            self.calls.receive_replies(record.replies, now_s=now_s)
            for request_id in record.questions:
                self._answer_question(request_id, now_s=now_s)

    def _answer_question(self, request_id: UUID, *, now_s: float) -> None:
        """Permit a call that came a second time, or say that it is over, or leave it in doubt."""
        call = self.calls.find(request_id)
        if self.calls.may_run(request_id, now_s=now_s):
            answer = "may_run"
            self.news.permit(request_id)
        elif call is None or call.has_ended:
            answer = "over"
            self.news.abort(request_id)
        else:
            answer = "not_answered"
        metrics.QUESTIONS.labels(answer).inc()

    def _hear_capacity(self, records: list[Received]) -> None:
        self.pools.hear(records, now_s=self.clock.monotonic_s())

    def _hear_closed(self, jobs: list[ClosedJob]) -> None:
        """Let go of whoever waits for jobs that were closed, by any process."""
        for job_id, reason in jobs:
            call = self.calls.find(job_id)
            if call is not None:
                call.fail(close_error(reason))

    def _lost_touch(self, sent_before_s: float) -> None:
        """Others take this process for dead and have dropped what it asked for."""
        self.calls.fail_unanswered(sent_before_s=sent_before_s)

    async def _sweep(self) -> None:
        before_s = self.clock.monotonic_s()
        while True:
            now_s = self.clock.monotonic_s()
            if max(self._health.oldest_s(), now_s - before_s) > _DEAF_S:
                self._deaf_s = now_s
            before_s = now_s
            self.calls.check_streams(
                now_s=now_s,
                keep_alive_s=self.settings.keep_alive_s,
                slow_reader_s=self.settings.slow_reader_s,
            )
            self.calls.end_doubted(now_s=now_s)
            self.calls.end_abandoned(partial(self._is_dead, now_s=now_s))
            await asyncio.sleep(_SWEEP_S)

    def _is_dead(self, pool: str, *, now_s: float) -> bool:
        return now_s - max(self.pools.alive_s(pool), self._deaf_s) > _POOL_DEAD_S


def _partition_of(caller_id: str) -> int:
    digest = blake2b(caller_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest) % REPLIES.partition_count
