"""Goal: replies to other callers on the same partition are skipped undecoded."""

from api.online.await_reply.reply_records import decode_replies
from core.ids import new_uuid
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Replies, Reply


def record(caller: str, value: bytes | None = None) -> ReceivedRecord:
    replies = Replies(caller, "replica", [Reply(new_uuid(), new_uuid(), [b"{}"])])
    headers = [*kind_headers(Replies), ("caller", caller.encode())]
    return ReceivedRecord("replies", 0, 0, b"k", headers, value or encode(replies), 0)


def test_replies_to_others_and_unreadable_ones_are_skipped() -> None:
    replies = decode_replies(
        [record("other", b"unreadable"), record("me"), record("me", b"\xc1"), record("me")], "me"
    )

    assert [one.caller_id for one in replies] == ["me", "me"]
