"""The open calls of this process. All methods run on the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from api.http.errors import ApiError
from api.online import metrics
from api.online.await_reply.pool_usage import PoolUsage
from api.online.call_errors import log_unavailable, queue_timeout, slow_reader, stream_interrupted
from api.online.send.call_keys import decrypt_end, decrypt_pieces
from storage.crypto.body_ciphers import BodyCipher, BodyUnreadableError
from topics.records.records import JobRef, Reply, ReplyEnd


@dataclass(slots=True, eq=False)
class OpenCall:
    """One open call. It ends at most once: by `end`, by `failure` or by `is_disconnected`."""

    job: JobRef
    now_s: InitVar[float] = field(kw_only=True)
    cipher: BodyCipher | None = field(kw_only=True, default=None)  # decrypts the replies
    opened_s: float = field(init=False)
    last_write_s: float = field(init=False)
    piece_count: int = 0  # received before the end
    has_started: bool = False  # a replica reported its execution
    execution_id: UUID | None = None  # of the first reply; others are ignored
    replica_id: str = ""  # of that reply, or the only one that runs the call
    pieces: list[bytes] = field(default_factory=list)  # received, not written yet
    buffered_bytes: int = 0
    end: ReplyEnd | None = None
    failure: ApiError | None = None
    is_disconnected: bool = False  # its client is gone
    is_slow_reader: bool = False  # its client read too slowly, and the stream was cut off
    replied_s: float = 0.0  # monotonic: first piece of a stream, end of any other reply
    keep_alive_due: bool = False
    sending_since_s: float | None = None  # a write waits for the client since then
    rerun_requested_s: float | None = None  # a second delivery since the last reply
    writer: asyncio.Task[None] | None = None
    _waiter: asyncio.Future[None] | None = None

    def __post_init__(self, now_s: float) -> None:
        self.opened_s = self.last_write_s = now_s

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

    def receive_reply(self, reply: Reply, *, replica_id: str, now_s: float) -> None:
        """Apply a part of the reply. Parts of a second execution are ignored."""
        self.has_started = True
        if not reply.pieces and reply.end is None:
            if self.execution_id is None:  # another execution may still reply first
                self.replica_id = replica_id if reply.only_here else ""
            return
        if self.execution_id is None:
            self.execution_id, self.replied_s = reply.execution_id, now_s
            self.replica_id = replica_id
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


RERUN_SILENCE_S_MAX: Final = 2.0
"""Silence of a stream, after a second delivery of its call, from which its execution is lost."""


class OpenCalls:
    """Every open call of this process, by request id."""

    def __init__(self, *, buffer_bytes_max: int) -> None:
        """A stream with more than `buffer_bytes_max` unwritten bytes is cut off."""
        self._buffer_bytes_max = buffer_bytes_max
        self._calls: dict[UUID, OpenCall] = {}
        self._reserved_count = 0
        self.count_by_tenant: Counter[UUID] = Counter()
        self.count_by_pool: Counter[str] = Counter()
        self.usage = PoolUsage()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[OpenCall]:
        return iter(list(self._calls.values()))

    @property
    def count(self) -> int:
        """Open calls, including reservations for calls that are about to open."""
        return len(self._calls) + self._reserved_count

    @contextmanager
    def reserve(self, job: JobRef) -> Iterator[None]:
        """Count an admitted call while it is committed or stored."""
        self._reserved_count += 1
        self._increment(job)
        try:
            yield
        finally:
            self._reserved_count -= 1
            self._decrement(job)

    def add(self, call: OpenCall) -> None:
        """Deliver replies to `call` from now on."""
        self._calls[call.job.job_id] = call
        self._increment(call.job)
        metrics.OPEN.set(len(self._calls))

    def remove(self, call: OpenCall) -> None:
        """Stop the delivery of replies to `call`; later ones are dropped."""
        del self._calls[call.job.job_id]
        self._decrement(call.job)
        metrics.OPEN.set(len(self._calls))

    def check_streams(self, *, now_s: float, keep_alive_s: float, slow_reader_s: float) -> None:
        """Request keep-alive comments on silent streams; cut off slow readers."""
        for call in self:
            if call.sending_since_s is not None:
                if now_s - call.sending_since_s > slow_reader_s:
                    call.cut_off_slow_reader()
            elif call.is_stream and now_s - call.last_write_s >= keep_alive_s:
                call.keep_alive_due = True
                call.last_write_s = now_s
                call.wake()

    def find(self, request_id: UUID) -> OpenCall | None:
        """Return an open call."""
        return self._calls.get(request_id)

    def receive_replies(self, replies: list[Reply], *, replica_id: str, now_s: float) -> None:
        """Deliver replies of a replica to their calls."""
        for reply in replies:
            call = self._calls.get(reply.request_id)
            if call is None:
                metrics.REPLIES_DROPPED.labels("nobody_waits").inc()
                continue
            if reply.pieces:
                metrics.PIECES.inc(len(reply.pieces))
            call.receive_reply(reply, replica_id=replica_id, now_s=now_s)
            if call.buffered_bytes > self._buffer_bytes_max and call.sending_since_s is not None:
                call.cut_off_slow_reader()

    def decide_rerun(self, request_id: UUID, *, now_s: float) -> bool:
        """Decide whether a call that was delivered a second time may be executed again.

        A call that has received a part of its reply may not: either its first execution continues,
        as the next reply will show, or it is lost, and the call ends as interrupted. The time of
        the first such decision since the last reply is kept, see `fail_silent_executions`.
        """
        call = self._calls.get(request_id)
        if call is None or call.has_ended:
            return False
        if call.execution_id is None:
            call.replica_id = ""
            return True
        if call.rerun_requested_s is None:
            call.rerun_requested_s = now_s
        return False

    def fail_calls_of_dead_pools(self, is_dead: Callable[[str], bool]) -> None:
        """End the started calls of pools without replicas: no replica will request a rerun."""
        dead = {pool for pool in self.count_by_pool if is_dead(pool)}
        for call in self if dead else ():
            if call.job.pool in dead and call.execution_id is not None:
                call.fail(stream_interrupted())

    def fail_calls_of_lost_replicas(self, is_lost: Callable[[str], bool]) -> None:
        """End the calls that lost replicas have begun to answer, or were the only ones to run.

        No other replica may ask for them: if their partition moved while they ran on, their offset
        is committed.
        """
        replica_ids = {call.replica_id for call in self}
        lost = {replica_id for replica_id in replica_ids if is_lost(replica_id)}
        for call in self if lost else ():
            if call.replica_id in lost:
                call.fail(stream_interrupted())

    def fail_silent_executions(self, *, now_s: float) -> None:
        """End calls that were delivered again and have received nothing since."""
        for call in self:
            requested_s = call.rerun_requested_s
            if requested_s is not None and now_s - requested_s > RERUN_SILENCE_S_MAX:
                call.fail(stream_interrupted())

    def fail_unanswered(self, sent_before_s: float) -> None:
        """End the calls sent before a time at which others considered this process dead."""
        for call in self:
            if call.opened_s < sent_before_s and not call.is_durable:
                call.fail(stream_interrupted() if call.execution_id else log_unavailable())

    def _increment(self, job: JobRef) -> None:
        self.count_by_tenant[job.tenant_id] += 1
        self.count_by_pool[job.pool] += 1
        self.usage.add(job)

    def _decrement(self, job: JobRef) -> None:
        self.count_by_tenant[job.tenant_id] -= 1
        if not self.count_by_tenant[job.tenant_id]:
            del self.count_by_tenant[job.tenant_id]
        self.count_by_pool[job.pool] -= 1
        self.usage.remove(job)
