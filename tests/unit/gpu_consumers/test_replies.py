"""Goal: a turn of the loop makes one record for each caller, in order, and none is too large."""

import asyncio
from dataclasses import dataclass, field
from uuid import UUID, uuid4

import pytest

from gpu_consumers.inflight.replies import REPLIES_BYTES_MAX, ReplyPublisher
from topics.clients.producer import OnDelivery
from topics.errors import DeliveryError
from topics.records.codec import Headers, decode
from topics.records.records import CallRef, Replies, ReplyEnd

CALLER, OTHER = CallRef("c1", 3, stream=True), CallRef("c2", 4, stream=True)
END = ReplyEnd(200, b"")


@dataclass
class Log:
    """Takes records; acknowledges each at once, or fails."""

    failure: BaseException | None = None
    records: list[Replies] = field(default_factory=list)
    places: list[tuple[str, int, bytes | None]] = field(default_factory=list)
    headers: list[dict[str, bytes]] = field(default_factory=list)

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        partition: int,
        key: bytes | None = None,
        headers: Headers | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        self.records.append(decode(Replies, value, headers))
        self.places.append((topic, partition, key))
        self.headers.append(dict(headers or ()))
        assert on_delivery is not None
        on_delivery(self.failure)


def publisher(log: Log) -> ReplyPublisher:
    return ReplyPublisher(log, "r1", asyncio.get_running_loop())


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_what_all_streams_of_a_caller_say_in_a_turn_is_one_record() -> None:
    log = Log()
    replies = publisher(log)
    first = replies.open(CALLER, UUID(int=1), UUID(int=9))
    second = replies.open(CALLER, UUID(int=2), UUID(int=9))
    third = replies.open(OTHER, UUID(int=3), UUID(int=9))
    first.piece(b"a")
    second.piece(b"b")
    first.piece(b"c")
    third.piece(b"d")
    replies.ask(OTHER, UUID(int=4))
    await turn()

    ours, others = log.records
    assert [(r.request_id, r.pieces) for r in ours.replies] == [
        (UUID(int=1), [b"a", b"c"]),
        (UUID(int=2), [b"b"]),
    ]
    assert (others.caller_id, others.questions, ours.questions) == ("c2", [UUID(int=4)], [])
    assert log.places == [("replies", 3, b"c1"), ("replies", 4, b"c2")]
    assert log.headers[0] == {"kind": b"replies", "schema": b"1", "caller": b"c1"}


async def test_a_question_is_done_when_the_log_has_it() -> None:
    log = Log()
    replies = publisher(log)
    asked = [replies.ask(CALLER, UUID(int=n)) for n in (1, 2)]
    assert not any(done.done() for done in asked)
    await asyncio.gather(*asked)
    assert [record.questions for record in log.records] == [[UUID(int=1), UUID(int=2)]]


async def test_an_end_follows_its_pieces_and_waits_for_its_acknowledgement() -> None:
    log = Log()
    stream = publisher(log).open(CALLER, uuid4(), uuid4())
    stream.piece(b"a")
    await turn()
    stream.piece(b"b")
    await stream.end(END)

    assert [(r.pieces, r.end) for record in log.records for r in record.replies] == [
        ([b"a"], None),
        ([b"b"], END),
    ]


async def test_only_a_caller_that_waits_for_it_hears_that_a_call_has_begun() -> None:
    log = Log()
    replies = publisher(log)
    replies.open(CALLER, uuid4(), uuid4()).begun()
    await turn()
    assert log.records == []
    patient = CallRef("c1", 3, begin_by_s=1.0)
    stream = replies.open(patient, uuid4(), uuid4())
    stream.begun()
    await turn()
    stream.piece(b"a")
    await turn()
    late = replies.open(patient, uuid4(), uuid4())
    late.begun()
    await late.end(END)

    assert [(r.pieces, r.end) for record in log.records for r in record.replies] == [
        ([], None),
        ([b"a"], None),
        ([], END),
    ]


async def test_a_turn_that_fits_no_record_is_split_in_order() -> None:
    log = Log()
    replies = publisher(log)
    big, small = (replies.open(CALLER, UUID(int=n), uuid4()) for n in (1, 2))
    pieces = [b"%d" % n * 300_000 for n in range(7)]
    for piece in pieces:
        big.piece(piece)
    small.piece(b"x" * 200_000)
    await asyncio.gather(big.end(ReplyEnd(500, b"e" * 500_000)), small.end(END))

    found = [r for record in log.records for r in record.replies]
    assert [p for r in found if r.request_id.int == 1 for p in r.pieces] == pieces
    assert [r.end is not None for r in found if r.request_id.int == 1][-1]
    for record in log.records:
        size = sum(
            sum(map(len, r.pieces)) + len(r.end.body if r.end else b"") for r in record.replies
        )
        assert size <= REPLIES_BYTES_MAX


async def test_a_lost_record_fails_the_publisher_and_no_end_is_reported() -> None:
    log = Log(failure=DeliveryError())
    replies = publisher(log)
    replies.open(CALLER, uuid4(), uuid4()).piece(b"a")
    ending = asyncio.create_task(replies.open(CALLER, uuid4(), uuid4()).end(END))
    with pytest.raises(DeliveryError):
        await replies.failed
    assert not ending.done()
    ending.cancel()


async def test_a_request_without_a_caller_says_nothing() -> None:
    log = Log()
    stream = publisher(log).open(None, uuid4(), uuid4())
    stream.piece(b"a")
    await stream.end(END)
    await turn()
    assert log.records == []
