"""Goal: replies to other callers on the same partition are skipped undecoded."""

import asyncio

from api.online.await_reply.reply_reader import ReplyReader
from core.ids import new_uuid
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Replies, Reply


def record(caller: str, value: bytes | None = None) -> ReceivedRecord:
    replies = Replies(caller, "replica", [Reply(new_uuid(), new_uuid(), [b"{}"])])
    headers = [*kind_headers(Replies), ("caller", caller.encode())]
    return ReceivedRecord("replies", 0, 0, b"k", headers, value or encode(replies), 0)


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
