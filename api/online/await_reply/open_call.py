"""A call whose client waits for its reply. All methods run on the event loop."""

import asyncio
from uuid import UUID

import msgspec

from api.http.errors import ApiError
from api.online import metrics
from api.online.call_errors import queue_timeout, slow_reader, stream_interrupted
from api.online.send.call_keys import decrypt_end, decrypt_pieces
from storage.crypto.body_ciphers import BodyCipher, BodyUnreadableError
from topics.records.records import JobRef, Reply, ReplyEnd


class OpenCall:
    """One open call. It ends at most once: by `end`, by `failure` or by `is_disconnected`."""

    __slots__ = (
        "_waiter",
        "buffered_bytes",
        "cipher",
        "end",
        "execution_id",
        "failure",
        "has_started",
        "is_disconnected",
        "is_slow_reader",
        "job",
        "keep_alive_due",
        "last_write_s",
        "opened_s",
        "piece_count",
        "pieces",
        "replied_s",
        "rerun_requested_s",
        "sending_since_s",
        "writer",
    )

    def __init__(self, job: JobRef, *, now_s: float, cipher: BodyCipher | None = None) -> None:
        """`cipher` decrypts the replies."""
        self.job, self.cipher = job, cipher
        self.piece_count = 0  # received before the end
        self.opened_s = self.last_write_s = now_s
        self.has_started = False  # a replica reported its execution
        self.execution_id: UUID | None = None  # of the first reply; others are ignored
        self.pieces: list[bytes] = []  # received, not written yet
        self.buffered_bytes = 0
        self.end: ReplyEnd | None = None
        self.failure: ApiError | None = None
        self.is_disconnected = False  # its client is gone
        self.is_slow_reader = False  # its client read too slowly, and the stream was cut off
        self.replied_s = 0.0  # monotonic: first piece of a stream, end of any other reply
        self.keep_alive_due = False
        self.sending_since_s: float | None = None  # a write waits for the client since then
        self.rerun_requested_s: float | None = None  # a second delivery since the last reply
        self.writer: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the outcome of the call can no longer change."""
        return self.end is not None or self.failure is not None or self.is_disconnected

    @property
    def is_durable(self) -> bool:
        """Whether the call outlives its connection."""
        return self.job.call is not None and self.job.call.durable

    @property
    def is_stream(self) -> bool:
        """Whether the reply arrives in pieces."""
        return self.job.call is not None and self.job.call.stream

    def receive_reply(self, reply: Reply, *, now_s: float) -> None:
        """Apply a part of the reply. Parts of a second execution are ignored."""
        self.has_started = True
        if not reply.pieces and reply.end is None:
            return  # only a start report: another execution may still reply first
        if self.execution_id is None:
            self.execution_id, self.replied_s = reply.execution_id, now_s
        elif self.execution_id != reply.execution_id:
            metrics.REPLIES_DROPPED.labels("other_execution").inc()
            return
        if self.has_ended:
            return
        self.rerun_requested_s = None
        if self.cipher is not None:
            try:
                reply = self._decrypt(reply, self.cipher)
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
                self.replied_s = now_s
        self.wake()

    def fail(self, failure: ApiError) -> None:
        """End the call with an error, unless it has ended."""
        if not self.has_ended:
            self.failure = failure
            self.wake()

    def expire_in_queue(self) -> None:
        """End the call unless its execution has started."""
        if not self.has_started:
            self.fail(queue_timeout())

    def disconnect(self) -> None:
        """End the call because its client is gone, unless it has ended."""
        if not self.has_ended:
            self.is_disconnected = True
            self.wake()

    def cut_off_slow_reader(self) -> None:
        """End the call because its client reads too slowly. A write that waits is cancelled."""
        self.is_slow_reader = True
        self.pieces = []
        self.failure = self.failure or slow_reader()
        if self.sending_since_s is not None and self.writer is not None:
            self.writer.cancel()
        self.wake()

    def drain_pieces(self) -> list[bytes]:
        """Return the pieces to write. They count as buffered until the write returns."""
        pieces, self.pieces = self.pieces, []
        return pieces

    def wake(self) -> None:
        """Let `wait_for_change` and `wait_for_end` check the state again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_for_change(self) -> None:
        """Return when there is something to write, or the call has ended."""
        while not (self.pieces or self.has_ended or self.keep_alive_due):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def wait_for_end(self) -> None:
        """Return when the call has ended."""
        while not self.has_ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _decrypt(self, reply: Reply, cipher: BodyCipher) -> Reply:
        pieces = decrypt_pieces(self.job, reply.pieces, self.piece_count, cipher)
        end = None if reply.end is None else decrypt_end(self.job, reply.end, cipher)
        return msgspec.structs.replace(reply, pieces=pieces, end=end)
