"""Goal: replies to other callers on the same partition are skipped undecoded."""

import asyncio
import queue
from typing import cast

from api.online.await_reply.topic_tail_threads import ReplyReader, TopicTailThread
from core.errors import MillraceError
from core.ids import new_uuid
from topics.errors import LogRefusedError
from topics.records.codec import encode, kind_headers
from topics.records.received import Received
from topics.records.records import Replies, Reply
from topics.tail_readers.topic_tail import TopicTail


def record(caller: str, value: bytes | None = None) -> Received:
    replies = Replies(caller, "replica", [Reply(new_uuid(), new_uuid(), [b"{}"])])
    headers = [*kind_headers(Replies), ("caller", caller.encode())]
    return Received("replies", 0, 0, b"k", headers, value or encode(replies), 0)


async def test_own_replies_are_delivered_once_a_poll() -> None:
    delivered: list[list[Replies]] = []
    reader = ReplyReader("me", asyncio.get_running_loop(), delivered.append)
    reader.read_records(
        [record("other", b"unreadable"), record("me"), record("me", b"\xc1"), record("me")]
    )
    reader.read_records([record("other")])
    reader.read_records([])
    await asyncio.sleep(0)

    (replies,) = delivered
    assert [one.caller_id for one in replies] == ["me", "me"]


class RefusedTail:
    """A broker tells once that this user may not read."""

    def __init__(self) -> None:
        self.polls = 0

    def skip_to_end(self, timeout_s: float) -> None:
        pass

    def poll(self, timeout_s: float) -> list[Received]:
        self.polls += 1
        if self.polls == 1:
            raise LogRefusedError("topic authorization failed")
        return []

    def close(self) -> None:
        pass


def test_a_broker_refusal_is_reported_at_once() -> None:
    told: queue.Queue[MillraceError] = queue.Queue()
    tail = RefusedTail()
    following = TopicTailThread(cast(TopicTail, tail), "test", lambda _: None, told.put)
    following.start()
    assert isinstance(told.get(timeout=10), LogRefusedError)
    following.stop()
    assert tail.polls == 1
