"""Replies to callers: one record per caller and iteration of the event loop.

The pieces that all calls of a caller produce in one iteration are sent together and at once. No
timer delays them, and a busy loop makes fewer and larger records.

While a partition of `replies` is unavailable, nobody can read the replies on it. What the producer
has stays there, in order; what it has no space for is dropped with the rest of its stream. A call
waits for the acknowledgement of its reply only until the partition counts as unavailable.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

from msgspec.structs import replace

from core.errors import MillraceError
from gpu_consumers import metrics
from topics.clients.producer import PartitionSender
from topics.records.catalogue import REPLIES
from topics.records.codec import encode, kind_headers
from topics.records.records import CallRef, Replies, Reply, ReplyEnd

REPLIES_BYTES_MAX = 800_000
"""Bytes of pieces and bodies in one record; a single larger piece still fits its own record."""

PIECE_BYTES_MAX = 1_000_000
"""A larger piece fits no record."""

_CUT_STATUS = 502
"""Status of the end of a stream that lost a piece."""

_CHECK_S = 0.5
"""Time between two looks at unavailable partitions, while ends or permission requests wait."""

_REPLY_OVERHEAD_BYTES = 64
_PIECE_OVERHEAD_BYTES = 8


@dataclass(slots=True, eq=False)
class ReplyStream:
    """The reply to one execution of a call, in order; without a caller it sends nothing."""

    publisher: "ReplyPublisher"
    call: CallRef | None
    request_id: UUID
    execution_id: UUID
    is_only_here: bool = False  # see `Reply.only_here`
    _pieces: list[bytes] = field(default_factory=list)
    _end: ReplyEnd | None = None
    _is_enqueued: bool = False  # at the publisher
    _is_cut: bool = False  # a piece was dropped: a later one would follow a gap
    _acknowledged: asyncio.Future[None] | None = None

    def send_piece(self, piece: bytes) -> None:
        """Send a piece of at most `PIECE_BYTES_MAX` after this iteration of the event loop."""
        if self.call is None or self._is_cut:
            return
        self._enqueue(self.call)
        self._pieces.append(piece)

    def send_start(self) -> None:
        """Report the start of the execution to a caller that limits the wait for it."""
        if self.call is not None and self.call.begin_by_s:
            self._enqueue(self.call)

    def report_only_here(self, *, only_here: bool) -> None:
        """Tell the caller that no other replica will run the call, or that one may."""
        self.is_only_here = only_here
        if self.call is not None:
            self._enqueue(self.call)

    async def send_end(self, end: ReplyEnd) -> None:
        """Send the end of the reply; return when it is acknowledged or its partition unavailable.

        A stream that lost a piece ends as interrupted.
        """
        if self.call is None:
            return
        self._enqueue(self.call)
        self._end = replace(end, status_code=_CUT_STATUS, body=b"") if self._is_cut else end
        self._acknowledged = asyncio.get_running_loop().create_future()
        await self._acknowledged

    def drop_queued(self) -> None:
        """Drop what is to be sent now; no piece follows a dropped one."""
        self._is_enqueued, self._is_cut = False, self._is_cut or bool(self._pieces)
        self._pieces, self._end = [], None
        if self._acknowledged is not None and not self._acknowledged.done():
            self._acknowledged.set_result(None)

    def _enqueue(self, call: CallRef) -> None:
        if not self._is_enqueued:
            self._is_enqueued = True
            self.publisher.enqueue(call, self)

    def dequeue_replies(self) -> Iterator[tuple[Reply, int, asyncio.Future[None] | None]]:
        """Yield what is to be sent: replies that fit a record, their bytes and acknowledgement."""
        self._is_enqueued = False
        pieces, self._pieces = self._pieces, []
        size = sum(map(len, pieces)) + _PIECE_OVERHEAD_BYTES * len(pieces)
        while size > REPLIES_BYTES_MAX and len(pieces) > 1:
            count, head_size = 1, len(pieces[0]) + _PIECE_OVERHEAD_BYTES
            while head_size + len(pieces[count]) + _PIECE_OVERHEAD_BYTES <= REPLIES_BYTES_MAX:
                head_size += len(pieces[count]) + _PIECE_OVERHEAD_BYTES
                count += 1
            yield self._reply(pieces[:count]), head_size, None
            pieces, size = pieces[count:], size - head_size
        end, self._end = self._end, None
        if end is not None and pieces and size + len(end.body) > REPLIES_BYTES_MAX:
            yield self._reply(pieces), size, None
            pieces, size = [], 0
        size += 0 if end is None else len(end.body)
        yield self._reply(pieces, end), size, self._acknowledged

    def _reply(self, pieces: list[bytes], end: ReplyEnd | None = None) -> Reply:
        return Reply(self.request_id, self.execution_id, pieces, end, only_here=self.is_only_here)


@dataclass(slots=True)
class _PendingReplies:
    """What is sent to one caller after this iteration of the event loop."""

    call: CallRef
    streams: list[ReplyStream] = field(default_factory=list)
    permission_requests: list[UUID] = field(default_factory=list)
    requests_sent: list[asyncio.Future[None]] = field(default_factory=list)  # one per request


class ReplyPublisher:
    """Collects replies during an iteration of the event loop and sends them after it."""

    def __init__(
        self, producer: PartitionSender, replica_id: str, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`producer` should not linger, and waits for unavailable partitions.

        Every method is called on `loop`.
        """
        self._producer, self._replica_id, self._loop = producer, replica_id, loop
        self._pending: dict[str, _PendingReplies] = {}
        self._headers = kind_headers(Replies)
        self._ends: dict[asyncio.Future[None], int] = {}  # unacknowledged, with their partition
        self._delayed: list[_PendingReplies] = []  # permission requests without space
        self._check: asyncio.TimerHandle | None = None
        self.failed: asyncio.Future[None] = loop.create_future()
        """Raises DeliveryError when a record was lost: no stream may continue after a gap."""

    def request_permission(self, call: CallRef, request_id: UUID) -> asyncio.Future[None]:
        """Ask the caller for permission to run a redelivered call again.

        Returns a future that is done when the request is acknowledged.
        """
        pending = self._pending_of(call)
        pending.permission_requests.append(request_id)
        sent: asyncio.Future[None] = self._loop.create_future()
        pending.requests_sent.append(sent)
        return sent

    def enqueue(self, call: CallRef, stream: ReplyStream) -> None:
        """Send what `stream` has to send; a stream calls this once per iteration."""
        self._pending_of(call).streams.append(stream)

    def _pending_of(self, call: CallRef) -> _PendingReplies:
        pending = self._pending.get(call.caller_id)
        if pending is None:
            if not self._pending:
                self._loop.call_soon(self._send_all)
            pending = self._pending[call.caller_id] = _PendingReplies(call)
        return pending

    def _send_all(self) -> None:
        all_pending, self._pending = self._pending, {}
        for pending in all_pending.values():
            try:
                self._send_pending(pending)
            except MillraceError as failure:
                self._fail(failure)

    def _send_pending(self, pending: _PendingReplies) -> None:
        if not self._producer.has_space(REPLIES.name, pending.call.reply_partition):
            self._drop_replies(pending)
            return
        replies: list[Reply] = []
        awaited: list[asyncio.Future[None]] = []
        size = 0
        for stream in pending.streams:
            for reply, added, acknowledged in stream.dequeue_replies():
                if replies and size + added > REPLIES_BYTES_MAX:
                    self._send(pending.call, replies, [], awaited)
                    replies, awaited, size = [], [], 0
                replies.append(reply)
                size += added + _REPLY_OVERHEAD_BYTES
                if acknowledged is not None and reply.end is not None:
                    awaited.append(acknowledged)
                    self._ends[acknowledged] = pending.call.reply_partition
        awaited += pending.requests_sent
        self._send(pending.call, replies, pending.permission_requests, awaited)
        if self._ends:
            self._check_later()

    def _drop_replies(self, pending: _PendingReplies) -> None:
        """Drop replies; permission requests wait, for they are not late before the call is."""
        for stream in pending.streams:
            stream.drop_queued()
        if pending.streams:
            metrics.REPLIES_DROPPED.inc(len(pending.streams))
        if pending.permission_requests:
            pending.streams.clear()
            self._delayed.append(pending)
            self._check_later()

    def _check_later(self) -> None:
        if self._check is None:
            self._check = self._loop.call_later(_CHECK_S, self._check_partitions)

    def _check_partitions(self) -> None:
        """End waits for unavailable partitions, and send requests that may have space now."""
        self._check = None
        for acknowledged, partition in [*self._ends.items()]:
            if self._producer.is_unavailable(REPLIES.name, partition):
                self._acknowledge(acknowledged)
        delayed, self._delayed = self._delayed, []
        for pending in delayed:
            later = self._pending_of(pending.call)
            later.permission_requests += pending.permission_requests
            later.requests_sent += pending.requests_sent
        if self._ends:
            self._check_later()

    def _acknowledge(self, acknowledged: asyncio.Future[None]) -> None:
        self._ends.pop(acknowledged, None)
        if not acknowledged.done():
            acknowledged.set_result(None)

    def _send(
        self,
        call: CallRef,
        replies: list[Reply],
        permission_requests: list[UUID],
        awaited: list[asyncio.Future[None]],
    ) -> None:
        caller = call.caller_id.encode()
        self._producer.send(
            REPLIES.name,
            encode(Replies(call.caller_id, self._replica_id, replies, permission_requests)),
            partition=call.reply_partition,
            key=caller,
            headers=[*self._headers, ("caller", caller)],
            on_delivery=partial(self._on_delivery, awaited),
        )

    def _on_delivery(
        self, awaited: list[asyncio.Future[None]], failure: BaseException | None
    ) -> None:
        """Runs on the producer's thread."""
        if awaited or failure is not None:
            self._loop.call_soon_threadsafe(self._set_acknowledged, awaited, failure)

    def _set_acknowledged(
        self, awaited: list[asyncio.Future[None]], failure: BaseException | None
    ) -> None:
        if failure is not None:
            self._fail(failure)  # the tasks that wait are cancelled with the process
            return
        for acknowledged in awaited:
            self._acknowledge(acknowledged)

    def _fail(self, failure: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(failure)
