"""Goal: replies to others who share the partition are told apart without being read."""

import asyncio

from api.online.tails import ReplyReader
from core.ids import new_uuid
from topics.codec import encode, kind_headers
from topics.received import Received
from topics.records import Replies, Reply


def record(caller: str, value: bytes | None = None) -> Received:
    replies = Replies(caller, "replica", [Reply(new_uuid(), new_uuid(), [b"{}"])])
    headers = [*kind_headers(Replies), ("caller", caller.encode())]
    return Received("replies", 0, 0, b"k", headers, value or encode(replies), 0)


async def test_one_delivery_a_poll_and_only_of_ours() -> None:
    delivered: list[list[Replies]] = []
    reader = ReplyReader("me", asyncio.get_running_loop(), delivered.append)
    reader.take([record("other", b"unreadable"), record("me"), record("me", b"\xc1"), record("me")])
    reader.take([record("other")])
    reader.take([])
    await asyncio.sleep(0)

    (replies,) = delivered
    assert [one.caller_id for one in replies] == ["me", "me"]
