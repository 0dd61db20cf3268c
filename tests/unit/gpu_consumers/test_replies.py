"""Goal: an iteration of the loop sends one record to each caller, in order, none too large."""

import asyncio
from uuid import UUID, uuid4

import pytest

from gpu_consumers.inflight.replies import REPLIES_BYTES_MAX, ReplyPublisher, ReplyStream
from tests.support.recording_sender import SentRecords
from tests.unit.gpu_consumers.fakes import run_loop
from topics.errors import DeliveryError
from topics.records.codec import decode
from topics.records.records import CallRef, Replies, ReplyEnd

CALLER, OTHER = CallRef("c1", 3, stream=True), CallRef("c2", 4, stream=True)
END = ReplyEnd(200, b"")


class Log(SentRecords):
    """Acknowledges each record at once, or reports `failure`."""

    def __init__(self, failure: BaseException | None = None) -> None:
        super().__init__(acknowledges=True, failure=failure)

    @property
    def sent(self) -> list[Replies]:
        return [decode(Replies, record.value, record.headers) for record in self.records]


def publisher(log: Log) -> ReplyPublisher:
    return ReplyPublisher(log, "r1", asyncio.get_running_loop())


async def test_replies_of_one_iteration_to_one_caller_share_a_record() -> None:
    log = Log()
    replies = publisher(log)
    first = ReplyStream(replies, CALLER, UUID(int=1), UUID(int=9))
    second = ReplyStream(replies, CALLER, UUID(int=2), UUID(int=9))
    third = ReplyStream(replies, OTHER, UUID(int=3), UUID(int=9))
    first.send_piece(b"a")
    second.send_piece(b"b")
    first.send_piece(b"c")
    third.send_piece(b"d")
    replies.request_permission(OTHER, UUID(int=4))
    await run_loop()

    ours, others = log.sent
    assert [(r.request_id, r.pieces) for r in ours.replies] == [
        (UUID(int=1), [b"a", b"c"]),
        (UUID(int=2), [b"b"]),
    ]
    assert (others.caller_id, others.questions, ours.questions) == ("c2", [UUID(int=4)], [])
    destinations = [(record.topic, record.partition, record.key) for record in log.records]
    assert destinations == [("replies", 3, b"c1"), ("replies", 4, b"c2")]
    assert dict(log.records[0].headers) == {"kind": b"replies", "schema": b"1", "caller": b"c1"}


async def test_a_permission_request_is_done_when_it_is_acknowledged() -> None:
    log = Log()
    replies = publisher(log)
    sent = [replies.request_permission(CALLER, UUID(int=n)) for n in (1, 2)]
    assert not any(done.done() for done in sent)
    await asyncio.gather(*sent)
    assert [record.questions for record in log.sent] == [[UUID(int=1), UUID(int=2)]]


async def test_an_end_follows_its_pieces_and_waits_for_its_acknowledgement() -> None:
    log = Log()
    stream = ReplyStream(publisher(log), CALLER, uuid4(), uuid4())
    stream.send_piece(b"a")
    await run_loop()
    stream.send_piece(b"b")
    await stream.send_end(END)

    assert [(r.pieces, r.end) for record in log.sent for r in record.replies] == [
        ([b"a"], None),
        ([b"b"], END),
    ]


async def test_the_start_is_reported_only_to_a_caller_with_a_start_limit() -> None:
    log = Log()
    replies = publisher(log)
    ReplyStream(replies, CALLER, uuid4(), uuid4()).send_start()
    await run_loop()
    assert log.records == []
    patient = CallRef("c1", 3, begin_by_s=1.0)
    stream = ReplyStream(replies, patient, uuid4(), uuid4())
    stream.send_start()
    await run_loop()
    stream.send_piece(b"a")
    await run_loop()
    late = ReplyStream(replies, patient, uuid4(), uuid4())
    late.send_start()
    await late.send_end(END)

    assert [(r.pieces, r.end) for record in log.sent for r in record.replies] == [
        ([], None),
        ([b"a"], None),
        ([], END),
    ]


async def test_a_caller_is_told_that_a_call_runs_only_here_and_when_that_ends() -> None:
    log = Log()
    stream = ReplyStream(publisher(log), CALLER, uuid4(), uuid4())
    for only_here in (True, False):
        stream.report_only_here(only_here=only_here)
        await run_loop()
    ReplyStream(publisher(log), None, uuid4(), uuid4()).report_only_here(only_here=True)
    await run_loop()

    replies = [reply for record in log.sent for reply in record.replies]
    assert [(r.pieces, r.end, r.only_here) for r in replies] == [
        ([], None, True),
        ([], None, False),
    ]


async def test_replies_that_fit_no_record_are_split_in_order() -> None:
    log = Log()
    replies = publisher(log)
    big, small = (ReplyStream(replies, CALLER, UUID(int=n), uuid4()) for n in (1, 2))
    pieces = [b"%d" % n * 300_000 for n in range(7)]
    for piece in pieces:
        big.send_piece(piece)
    small.send_piece(b"x" * 200_000)
    await asyncio.gather(big.send_end(ReplyEnd(500, b"e" * 500_000)), small.send_end(END))

    found = [r for record in log.sent for r in record.replies]
    assert [p for r in found if r.request_id.int == 1 for p in r.pieces] == pieces
    assert [r.end is not None for r in found if r.request_id.int == 1][-1]
    for record in log.sent:
        size = sum(
            sum(map(len, r.pieces)) + len(r.end.body if r.end else b"") for r in record.replies
        )
        assert size <= REPLIES_BYTES_MAX


async def test_a_lost_record_fails_the_publisher_and_no_end_is_reported() -> None:
    log = Log(failure=DeliveryError())
    replies = publisher(log)
    ReplyStream(replies, CALLER, uuid4(), uuid4()).send_piece(b"a")
    ending = asyncio.create_task(ReplyStream(replies, CALLER, uuid4(), uuid4()).send_end(END))
    with pytest.raises(DeliveryError):
        await replies.failed
    assert not ending.done()
    ending.cancel()


async def test_a_request_without_a_caller_sends_no_reply() -> None:
    log = Log()
    stream = ReplyStream(publisher(log), None, uuid4(), uuid4())
    stream.send_piece(b"a")
    await stream.send_end(END)
    await run_loop()
    assert log.records == []


def unavailable_log() -> Log:
    log = Log()
    log.unavailable.add(("replies", CALLER.reply_partition))
    return log


async def ended(stream: ReplyStream) -> None:
    async with asyncio.timeout(20):
        await stream.send_end(END)


async def test_a_call_waits_for_its_reply_only_until_its_partition_is_unavailable() -> None:
    log = unavailable_log()
    replies = publisher(log)
    stream = ReplyStream(replies, CALLER, uuid4(), uuid4())
    other = ReplyStream(replies, OTHER, uuid4(), uuid4())
    await asyncio.gather(ended(stream), ended(other))

    log.restore()
    assert [len(record.replies) for record in log.sent] == [1, 1]  # nothing was sent again
    await run_loop()
    assert not replies.failed.done()


async def test_a_stream_that_lost_a_piece_sends_no_later_piece_and_ends_as_interrupted() -> None:
    log = unavailable_log()
    replies = publisher(log)
    cut, later = (ReplyStream(replies, CALLER, uuid4(), uuid4()) for _ in range(2))
    await ended(later)  # its record waits: the partition has no space
    cut.send_piece(b"a")
    await run_loop()
    cut.send_piece(b"b")
    await run_loop()
    log.restore()
    cut.send_piece(b"c")
    await ended(cut)

    sent = [r for record in log.sent for r in record.replies if r.request_id == cut.request_id]
    assert [(r.pieces, r.end and r.end.status_code) for r in sent] == [([], 502)]


async def test_permission_requests_wait_for_an_unavailable_partition() -> None:
    log = unavailable_log()
    replies = publisher(log)
    await ended(ReplyStream(replies, CALLER, uuid4(), uuid4()))
    sent = replies.request_permission(CALLER, UUID(int=1))
    await run_loop()
    assert not sent.done()
    log.restore()
    async with asyncio.timeout(20):
        await sent
    assert [record.questions for record in log.sent] == [[], [UUID(int=1)]]
