"""A pool that a test plays: it reads calls from the log and replies as scripted."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from core.states import CloseReason
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import (
    CALLERS,
    CAPACITY,
    CONTROL,
    DEMAND,
    REPLIES,
    REQUESTS_INTERACTIVE,
)
from topics.records.codec import decode, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import (
    CallerHeartbeat,
    Capacity,
    Chunk,
    JobControl,
    Replies,
    Reply,
    ReplyEnd,
)
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

REPEAT_S = 0.1
WAIT_S_MAX = 40.0

Script = Callable[["PlayedPool", Chunk], None]


def answer_at_once(pool: "PlayedPool", chunk: Chunk) -> None:
    """Answer a unary call with its own body, a stream with three pieces."""
    call = chunk.job.call
    assert call is not None
    if call.stream:
        pool.reply(chunk, pieces=[b'{"n":%d}' % n for n in range(3)], end=good_end(b""))
    else:
        pool.reply(chunk, end=good_end(b'{"asked":' + chunk.items[0].body + b"}"))


def say_nothing(pool: "PlayedPool", chunk: Chunk) -> None:
    """Leave a call unanswered."""


def good_end(body: bytes) -> ReplyEnd:
    return ReplyEnd(200, body, input_tokens=3, output_tokens=2, waited_s=0.001, execution_s=0.002)


@dataclass
class PlayedPool:
    """Batcher, replica and engine in one, without any of their promises."""

    kafka: KafkaSettings
    name: str = "small"
    script: Script = answer_at_once
    is_away: bool = False
    items_per_s: float = 0.0
    concurrency: int = 100
    tenant_ids: frozenset[UUID] = frozenset()
    """The tenants of this test: calls of earlier ones are ignored."""

    chunks: list[Chunk] = field(default_factory=list)
    news: list[CallerHeartbeat] = field(default_factory=list)

    def __post_init__(self) -> None:
        admin = TopicAdmin(self.kafka)
        topics = (REQUESTS_INTERACTIVE, REPLIES, CALLERS, CAPACITY, DEMAND, CONTROL)
        admin.create(topics)
        self._stopping = threading.Event()
        self._producer = RecordProducer(self.kafka, client_id="played", linger_ms=0)
        self._executions: dict[UUID, UUID] = {}
        self._requests = TopicTailReader(
            self.kafka, REQUESTS_INTERACTIVE, client_id="played-requests"
        )
        self._callers = TopicTailReader(self.kafka, CALLERS, client_id="played-callers")
        self._requests.seek_to_end(WAIT_S_MAX)
        self._callers.seek_to_end(WAIT_S_MAX)
        self._threads = [
            threading.Thread(target=body)
            for body in (self._publish, self._read_requests, self._read_callers)
        ]
        for thread in self._threads:
            thread.start()

    def begin_test(self, *tenant_ids: UUID) -> None:
        """Forget what earlier tests did; answer calls of these tenants at once."""
        self.tenant_ids, self.script = frozenset(tenant_ids), answer_at_once
        self.chunks.clear()
        self.news.clear()

    def reply(
        self,
        chunk: Chunk,
        *,
        pieces: list[bytes] | None = None,
        end: ReplyEnd | None = None,
        execution_id: UUID | None = None,
    ) -> None:
        """Send a part of an answer."""
        request_id = chunk.job.job_id
        execution = execution_id or self._executions.setdefault(request_id, uuid4())
        self._send(chunk, [Reply(request_id, execution, pieces or [], end)], [])

    def ask(self, chunk: Chunk) -> None:
        """Ask whether a call that came a second time may run."""
        self._send(chunk, [], [chunk.job.job_id])

    def close_job(self, job_id: UUID, reason: CloseReason) -> None:
        """Tell of a close, as intake does."""
        self._producer.send(
            CONTROL.name,
            encode(JobControl(job_id, version=1, closed=reason)),
            partition=0,
            key=job_id.bytes,
            headers=kind_headers(JobControl),
        )

    def aborted(self, request_id: UUID) -> bool:
        return any(request_id in news.aborted for news in self.news)

    def permitted(self, request_id: UUID) -> bool:
        return any(request_id in news.permitted for news in self.news)

    def only_chunk(self) -> Chunk:
        """Wait for the one call that was sent."""
        self.wait_for(lambda: bool(self.chunks))
        (chunk,) = self.chunks
        return chunk

    def wait_for(self, check: Callable[[], bool], timeout_s: float = WAIT_S_MAX) -> None:
        until(check, timeout_s=timeout_s)

    def close(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._producer.close()
        self._requests.close()
        self._callers.close()

    def _send(self, chunk: Chunk, replies: list[Reply], questions: list[UUID]) -> None:
        call = chunk.job.call
        assert call is not None
        self._producer.send(
            REPLIES.name,
            encode(Replies(call.caller_id, "played", replies, questions)),
            partition=call.reply_partition,
            key=call.caller_id.encode(),
            headers=[*kind_headers(Replies), ("caller", call.caller_id.encode())],
        )

    def _publish(self) -> None:
        while not self._stopping.wait(REPEAT_S):
            if self.is_away:
                continue
            capacity = Capacity(
                replica_id="played",
                epoch=1,
                pool=self.name,
                job_class="interactive",
                partitions=[0],
                granted={},
                items_per_s=self.items_per_s,
                concurrency=self.concurrency,
            )
            self._producer.send(
                CAPACITY.name,
                encode(capacity),
                partition=0,
                key=b"played:interactive",
                headers=kind_headers(Capacity),
            )

    def _read_requests(self) -> None:
        while not self._stopping.is_set():
            for record in arrived(self._requests):
                chunk = decode(Chunk, record.value, record.headers)
                if chunk.job.tenant_id in self.tenant_ids:
                    self.chunks.append(chunk)
                    self.script(self, chunk)

    def _read_callers(self) -> None:
        while not self._stopping.is_set():
            for record in arrived(self._callers):
                self.news.append(decode(CallerHeartbeat, record.value, record.headers))


def arrived(tail: TopicTailReader) -> list[ReceivedRecord]:
    """Return what came; nothing from a broker that is starting and does not know the topic yet."""
    try:
        return tail.poll(0.1)
    except KafkaUnavailableError:
        return []
