"""Replies to callers: one record for each caller and turn of the event loop.

Whatever all calls of a caller produced in one turn travels together, at once: no timer waits for
more, and a busy turn makes fewer, larger records by itself.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from core.errors import MillraceError
from topics.clients.producer import OnDelivery, RecordSender
from topics.records.catalogue import REPLIES
from topics.records.codec import encode, kind_headers
from topics.records.records import CallRef, Replies, Reply, ReplyEnd

REPLIES_BYTES_MAX = 800_000
"""Bytes of pieces and bodies in one record; one larger piece still fits a record of its own."""

PIECE_BYTES_MAX = 1_000_000
"""A larger piece fits no record."""

_PART_OVERHEAD_BYTES = 64
_PIECE_OVERHEAD_BYTES = 8


class ReplyStream:
    """The parts of one execution's answer, in order; without a caller they go nowhere."""

    __slots__ = (
        "_acknowledged",
        "_call",
        "_end",
        "_execution_id",
        "_id",
        "_is_waiting",
        "_pieces",
        "_publisher",
    )

    def __init__(
        self,
        publisher: "ReplyPublisher",
        call: CallRef | None,
        request_id: UUID,
        execution_id: UUID,
    ) -> None:
        """Nothing has been said yet."""
        self._publisher, self._call = publisher, call
        self._id, self._execution_id = request_id, execution_id
        self._pieces: list[bytes] = []
        self._end: ReplyEnd | None = None
        self._is_waiting = False  # to be taken
        self._acknowledged: asyncio.Future[None] | None = None

    def piece(self, piece: bytes) -> None:
        """Send a piece of at most `PIECE_BYTES_MAX` when this turn of the loop is over."""
        if self._call is None:
            return
        self._speak(self._call)
        self._pieces.append(piece)

    def begun(self) -> None:
        """Say that the execution has begun, to a caller that waits for this word."""
        if self._call is not None and self._call.begin_by_s:
            self._speak(self._call)

    async def end(self, end: ReplyEnd) -> None:
        """Send the last part; return when it is acknowledged. Raises DeliveryError."""
        if self._call is None:
            return
        self._speak(self._call)
        self._end = end
        self._acknowledged = asyncio.get_running_loop().create_future()
        await self._acknowledged

    def _speak(self, call: CallRef) -> None:
        if not self._is_waiting:
            self._is_waiting = True
            self._publisher.speak(call, self)

    def take(self) -> Iterator[tuple[Reply, int, asyncio.Future[None] | None]]:
        """Return what waits, in replies that fit a record, with their bytes and who awaits them."""
        self._is_waiting = False
        pieces, self._pieces = self._pieces, []
        size = sum(map(len, pieces)) + _PIECE_OVERHEAD_BYTES * len(pieces)
        while size > REPLIES_BYTES_MAX and len(pieces) > 1:
            count, head_size = 1, len(pieces[0]) + _PIECE_OVERHEAD_BYTES
            while head_size + len(pieces[count]) + _PIECE_OVERHEAD_BYTES <= REPLIES_BYTES_MAX:
                head_size += len(pieces[count]) + _PIECE_OVERHEAD_BYTES
                count += 1
            yield Reply(self._id, self._execution_id, pieces[:count]), head_size, None
            pieces, size = pieces[count:], size - head_size
        end, self._end = self._end, None
        if end is not None and pieces and size + len(end.body) > REPLIES_BYTES_MAX:
            yield Reply(self._id, self._execution_id, pieces), size, None
            pieces, size = [], 0
        size += 0 if end is None else len(end.body)
        yield Reply(self._id, self._execution_id, pieces, end), size, self._acknowledged


@dataclass(slots=True)
class _Mail:
    """What waits for one caller in this turn."""

    call: CallRef
    streams: list[ReplyStream] = field(default_factory=list)
    questions: list[UUID] = field(default_factory=list)
    asked: list[asyncio.Future[None]] = field(default_factory=list)  # one for each question


class ReplyPublisher:
    """Collects what calls say in a turn of the loop and sends it. All methods run on the loop."""

    def __init__(
        self, producer: RecordSender, replica_id: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`producer` should not linger."""
        self._producer, self._replica_id, self._loop = producer, replica_id, loop
        self._waiting: dict[str, _Mail] = {}
        self._headers = kind_headers(Replies)
        self.failed: asyncio.Future[None] = loop.create_future()
        """Raises DeliveryError when a record was lost: no stream may go on over a gap."""

    def open(self, call: CallRef | None, request_id: UUID, execution_id: UUID) -> ReplyStream:
        """Return what one execution of a call speaks through."""
        return ReplyStream(self, call, request_id, execution_id)

    def ask(self, call: CallRef, request_id: UUID) -> asyncio.Future[None]:
        """Ask the caller whether a request that may have run before may run.

        What is returned is done when the log has the question.
        """
        mail = self._mail(call)
        mail.questions.append(request_id)
        asked: asyncio.Future[None] = self._loop.create_future()
        mail.asked.append(asked)
        return asked

    def speak(self, call: CallRef, stream: ReplyStream) -> None:
        """A stream that had nothing waiting in this turn has now."""
        self._mail(call).streams.append(stream)

    def _mail(self, call: CallRef) -> _Mail:
        mail = self._waiting.get(call.caller_id)
        if mail is None:
            if not self._waiting:
                self._loop.call_soon(self._send_all)
            mail = self._waiting[call.caller_id] = _Mail(call)
        return mail

    def _send_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for mail in waiting.values():
            try:
                self._send_mail(mail)
            except MillraceError as failure:
                self._fail(failure)

    def _send_mail(self, mail: _Mail) -> None:
        replies: list[Reply] = []
        awaited: list[asyncio.Future[None]] = []
        size = 0
        for stream in mail.streams:
            for reply, more, acknowledged in stream.take():
                if replies and size + more > REPLIES_BYTES_MAX:
                    self._send(mail.call, replies, [], awaited)
                    replies, awaited, size = [], [], 0
                replies.append(reply)
                size += more + _PART_OVERHEAD_BYTES
                if acknowledged is not None and reply.end is not None:
                    awaited.append(acknowledged)
        self._send(mail.call, replies, mail.questions, [*awaited, *mail.asked])

    def _send(
        self,
        call: CallRef,
        replies: list[Reply],
        questions: list[UUID],
        awaited: list[asyncio.Future[None]],
    ) -> None:
        caller = call.caller_id.encode()
        self._producer.send(
            REPLIES.name,
            encode(Replies(call.caller_id, self._replica_id, replies, questions)),
            partition=call.reply_partition,
            key=caller,
            headers=[*self._headers, ("caller", caller)],
            on_delivery=self._report(awaited) if awaited else self._note,
        )

    def _report(self, awaited: list[asyncio.Future[None]]) -> OnDelivery:
        def report(failure: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(self._settle, awaited, failure)

        return report

    def _note(self, failure: BaseException | None) -> None:
        if failure is not None:
            self._loop.call_soon_threadsafe(self._fail, failure)

    def _settle(self, awaited: list[asyncio.Future[None]], failure: BaseException | None) -> None:
        if failure is not None:
            self._fail(failure)  # what awaits an acknowledgement ends with the process
            return
        for acknowledged in awaited:
            if not acknowledged.done():
                acknowledged.set_result(None)

    def _fail(self, failure: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(failure)
