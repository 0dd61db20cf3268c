"""An API replica as a GPU consumer sees it: it beats, asks, aborts, permits and reads replies."""

import threading
import time
from collections.abc import Callable
from uuid import UUID

from tests.integration.gpu_consumers.bench import batch, job
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CALLERS, REPLIES
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import (
    Batch,
    CallerHeartbeat,
    CallRef,
    Chunk,
    Item,
    JobRef,
    Replies,
    Reply,
    ReplyEnd,
)
from topics.settings import KafkaSettings
from topics.tail_readers.caller_liveness import CALLER_HEARTBEAT_S
from topics.tail_readers.topic_tail_reader import TopicTailReader

CALLER_ID = "api-1"
PARTITION = 3


class Caller:
    """Beats from its construction on."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._producer = RecordProducer(kafka, client_id="caller", linger_ms=0)
        self._tail = TopicTailReader(kafka, REPLIES, client_id="caller")
        self._quiet = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self._thread.start()
        self.heard: list[Replies] = []

    def say(
        self, *, aborted: list[UUID] | None = None, permitted: list[UUID] | None = None
    ) -> None:
        news = CallerHeartbeat(CALLER_ID, time.time(), aborted or [], permitted or [])
        self._producer.send(
            CALLERS.name, encode(news), partition=0, headers=kind_headers(CallerHeartbeat)
        )

    def fall_silent(self) -> None:
        self._quiet.set()
        self._thread.join()

    def close(self) -> None:
        self.fall_silent()
        self._producer.close()
        self._tail.close()

    def await_replies(self, enough: Callable[["Caller"], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not enough(self):
            assert time.monotonic() < deadline, self.heard
            for record in self._tail.poll(0.1):
                assert record.partition == PARTITION
                assert dict(record.headers)["caller"] == CALLER_ID.encode()
                self.heard.append(decode(Replies, record.value, record.headers))

    def pieces(self, number: int) -> list[bytes]:
        return [p for r in self.heard_of(number) for p in r.pieces]

    def end(self, number: int) -> ReplyEnd | None:
        ends = [r.end for r in self.heard_of(number) if r.end is not None]
        assert len(ends) <= 1
        return ends[0] if ends else None

    def questions(self) -> list[UUID]:
        return [q for record in self.heard for q in record.questions]

    def heard_of(self, number: int) -> list[Reply]:
        return [r for record in self.heard for r in record.replies if r.request_id.int == number]

    def _beat(self) -> None:
        while not self._quiet.is_set():
            self.say()
            self._quiet.wait(CALLER_HEARTBEAT_S)


def call_of(
    number: int,
    *,
    stream: bool = False,
    durable: bool = False,
    timeout_s: float = 60.0,
    queue_timeout_s: float | None = None,
) -> Batch:
    """Return a batch of one online request."""
    told = job(number)
    ref = JobRef(
        job_id=told.job_id,
        day=told.day,
        tenant_id=told.tenant_id,
        model=told.model,
        model_version=told.model_version,
        pool=told.pool,
        endpoint=told.endpoint,
        input_key="",
        deadline_s=time.time() + timeout_s,
        call=CallRef(
            CALLER_ID,
            PARTITION,
            stream=stream,
            durable=durable,
            begin_by_s=0.0 if queue_timeout_s is None else time.time() + queue_timeout_s,
        ),
    )
    return batch(Chunk(ref, [Item(0, "", b'{"q":1}', 1)]))
