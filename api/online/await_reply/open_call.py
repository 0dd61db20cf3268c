"""A call that its client waits for now, and what was heard of it. All on the event loop."""

import asyncio
from uuid import UUID

import msgspec

from api.http.responses import ApiError
from api.online import metrics
from api.online.answer.call_failures import queue_timeout, slow_reader, stream_interrupted
from api.online.send.call_keys import decrypt_end, decrypt_pieces
from storage.crypto.body_ciphers import BodyCipher, BodyUnreadableError
from topics.records.records import JobRef, Reply, ReplyEnd


class OpenCall:
    """One call. It has at most one end of: `end`, `failure`, `left`."""

    __slots__ = (
        "_waiter",
        "buffered_bytes",
        "cipher",
        "doubted_s",
        "end",
        "execution_id",
        "failure",
        "has_begun",
        "heard_s",
        "is_cut",
        "job",
        "keep_alive_due",
        "left",
        "opened_s",
        "piece_count",
        "pieces",
        "quiet_since_s",
        "sending_since_s",
        "writer",
    )

    def __init__(self, job: JobRef, *, now_s: float, cipher: BodyCipher | None = None) -> None:
        """Nothing is heard yet. `cipher` opens what will be."""
        self.job, self.cipher = job, cipher
        self.piece_count = 0  # heard, as long as it was not over
        self.opened_s = self.quiet_since_s = now_s
        self.has_begun = False  # as far as its replica has said
        self.execution_id: UUID | None = None  # the first that was heard of
        self.pieces: list[bytes] = []  # not written yet
        self.buffered_bytes = 0
        self.end: ReplyEnd | None = None
        self.failure: ApiError | None = None
        self.left = False  # its client went away
        self.is_cut = False  # its reader takes too little
        self.heard_s = 0.0
        self.keep_alive_due = False
        self.sending_since_s: float | None = None  # a write waits for the reader
        self.doubted_s: float | None = None
        self.writer: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether nothing that comes can change how it ends."""
        return self.end is not None or self.failure is not None or self.left

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.job.call is not None and self.job.call.durable

    @property
    def is_stream(self) -> bool:
        """Whether its answer comes in pieces."""
        return self.job.call is not None and self.job.call.stream

    def receive_reply(self, reply: Reply, *, now_s: float) -> None:
        """Take in a part of the answer; parts of a second execution are dropped."""
        self.has_begun = True
        if not reply.pieces and reply.end is None:
            return  # no part of it: another execution may still take its place
        if self.execution_id is None:
            self.execution_id, self.heard_s = reply.execution_id, now_s
        elif self.execution_id != reply.execution_id:
            metrics.REPLIES_DROPPED.labels("other_execution").inc()
            return
        if self.has_ended:
            return
        self.doubted_s = None
        if self.cipher is not None:
            try:
                reply = self._opened(reply, self.cipher)
            except BodyUnreadableError:
                self.fail(stream_interrupted())
                return
        if reply.pieces:
            self.piece_count += len(reply.pieces)
            self.pieces += reply.pieces
            self.buffered_bytes += sum(map(len, reply.pieces))
        if reply.end is not None:
            self.end = reply.end
            if not self.is_stream:
                self.heard_s = now_s
        self.wake()

    def _opened(self, reply: Reply, cipher: BodyCipher) -> Reply:
        pieces = decrypt_pieces(self.job, reply.pieces, self.piece_count, cipher)
        end = None if reply.end is None else decrypt_end(self.job, reply.end, cipher)
        return msgspec.structs.replace(reply, pieces=pieces, end=end)

    def fail(self, failure: ApiError) -> None:
        """End it with an error of ours, unless it ended already."""
        if not self.has_ended:
            self.failure = failure
            self.wake()

    def give_up_waiting(self) -> None:
        """End it unless it has begun."""
        if not self.has_begun:
            self.fail(queue_timeout())

    def leave(self) -> None:
        """Note that its client went away."""
        if not self.has_ended:
            self.left = True
            self.wake()

    def cut(self) -> None:
        """End it because its reader takes too little; a write that waits for it is cancelled."""
        self.is_cut = True
        self.pieces = []
        self.failure = self.failure or slow_reader()
        if self.sending_since_s is not None and self.writer is not None:
            self.writer.cancel()
        self.wake()

    def take_pieces(self) -> list[bytes]:
        """Return what is to be written; it counts as buffered until the write returns."""
        pieces, self.pieces = self.pieces, []
        return pieces

    def wake(self) -> None:
        """Let `changed` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def changed(self) -> None:
        """Return when there is something to write or an end."""
        while not (self.pieces or self.has_ended or self.keep_alive_due):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def ended(self) -> None:
        """Return when it is over."""
        while not self.has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
