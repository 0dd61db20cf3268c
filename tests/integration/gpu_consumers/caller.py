"""A caller of online calls: publishes heartbeats, aborts and permissions, and reads replies."""

import threading
import time
from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from tests.integration.gpu_consumers.threaded_replica import batch, job
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CALLERS, REPLIES
from topics.records.codec import decode, encode, kind_headers
from topics.records.records import (
    Batch,
    CallerHeartbeat,
    CallRef,
    Chunk,
    Item,
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
    """Publishes heartbeats from its construction on."""

    def __init__(self, kafka: KafkaSettings, caller_id: str = CALLER_ID) -> None:
        self._caller_id = caller_id
        self._producer = RecordProducer(kafka, client_id="caller", linger_ms=0)
        self._tail = TopicTailReader(kafka, REPLIES, client_id="caller")
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._publish_heartbeats)
        self._thread.start()
        self.received: list[Replies] = []

    def publish(
        self, *, aborted: list[UUID] | None = None, permitted: list[UUID] | None = None
    ) -> None:
        news = CallerHeartbeat(self._caller_id, time.time(), aborted or [], permitted or [])
        self._producer.send(
            CALLERS.name, encode(news), partition=0, headers=kind_headers(CallerHeartbeat)
        )

    def stop_heartbeats(self) -> None:
        self._is_stopped.set()
        self._thread.join()

    def close(self) -> None:
        self.stop_heartbeats()
        self._producer.close()
        self._tail.close()

    def await_replies(self, enough: Callable[["Caller"], object], timeout_s: float = 40.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not enough(self):
            assert time.monotonic() < deadline, self.received
            for record in self._tail.poll(0.1):
                assert record.partition == PARTITION
                assert dict(record.headers)["caller"] == self._caller_id.encode()
                self.received.append(decode(Replies, record.value, record.headers))

    def pieces(self, number: int) -> list[bytes]:
        return [p for r in self.replies_to(number) for p in r.pieces]

    def ends(self, number: int) -> list[ReplyEnd]:
        """Return the end of a reply, if it has arrived."""
        ends = [r.end for r in self.replies_to(number) if r.end is not None]
        assert len(ends) <= 1
        return ends

    def await_end(self, number: int) -> ReplyEnd:
        self.await_replies(lambda caller: caller.ends(number))
        return self.ends(number)[0]

    def permission_requests(self) -> list[UUID]:
        return [q for record in self.received for q in record.questions]

    def replies_to(self, number: int) -> list[Reply]:
        return [r for record in self.received for r in record.replies if r.request_id.int == number]

    def _publish_heartbeats(self) -> None:
        while not self._is_stopped.is_set():
            self.publish()
            self._is_stopped.wait(CALLER_HEARTBEAT_S)


def call_of(
    number: int,
    *,
    stream: bool = False,
    durable: bool = False,
    timeout_s: float = 60.0,
    queue_timeout_s: float | None = None,
) -> Batch:
    """Return a batch of one online call."""
    now_s = time.time()
    begin_by_s = 0.0 if queue_timeout_s is None else now_s + queue_timeout_s
    call = CallRef(CALLER_ID, PARTITION, stream=stream, durable=durable, begin_by_s=begin_by_s)
    ref = replace(job(number), input_key="", deadline_s=now_s + timeout_s, call=call)
    return batch(Chunk(ref, [Item(0, "", b'{"q":1}', 1)]))
