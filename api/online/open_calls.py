"""The calls that clients wait for now, and what was heard of each. All on the event loop."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

import msgspec

from api.answers import ApiError, unavailable
from api.online import metrics
from api.online.admission import log_unavailable
from api.online.call_keys import opened_end, opened_pieces
from storage.body_ciphers import BodyCipher, BodyUnreadableError
from topics.records import JobRef, Reply, ReplyEnd

SLOW_READER: Final = "slow_reader"

DOUBT_S_MAX: Final = 2.0
"""Silence of a stream, after a second delivery of its call, that means its execution died."""


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
        "heard_s",
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
        self.piece_count = 0  # heard; counted where they are encrypted
        self.opened_s = self.quiet_since_s = now_s
        self.execution_id: UUID | None = None  # the first that was heard of
        self.pieces: list[bytes] = []  # not written yet
        self.buffered_bytes = 0
        self.end: ReplyEnd | None = None
        self.failure: ApiError | None = None
        self.left = False  # its client went away
        self.heard_s = 0.0
        self.keep_alive_due = False
        self.sending_since_s: float | None = None  # a write waits for the reader
        self.doubted_s: float | None = None
        self.writer: asyncio.Task[None] | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def is_over(self) -> bool:
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

    def hear(self, reply: Reply, *, now_s: float) -> None:
        """Take in a part of the answer; parts of a second execution are dropped."""
        if self.execution_id is None:
            self.execution_id, self.heard_s = reply.execution_id, now_s
        elif self.execution_id != reply.execution_id:
            metrics.REPLIES_DROPPED.labels("other_execution").inc()
            return
        if self.is_over:
            return
        self.doubted_s = None
        if self.cipher is not None:
            try:
                reply = self._opened(reply, self.cipher)
            except BodyUnreadableError:
                self.fail(stream_interrupted())
                return
        if reply.pieces:
            self.pieces += reply.pieces
            self.buffered_bytes += sum(map(len, reply.pieces))
        if reply.end is not None:
            self.end = reply.end
            if not self.is_stream:
                self.heard_s = now_s
        self.wake()

    def _opened(self, reply: Reply, cipher: BodyCipher) -> Reply:
        pieces = opened_pieces(self.job, reply.pieces, self.piece_count, cipher)
        self.piece_count += len(pieces)
        end = None if reply.end is None else opened_end(self.job, reply.end, cipher)
        return msgspec.structs.replace(reply, pieces=pieces, end=end)

    def fail(self, failure: ApiError) -> None:
        """End it with an error of ours, unless it ended already."""
        if not self.is_over:
            self.failure = failure
            self.wake()

    def leave(self) -> None:
        """Note that its client went away."""
        if not self.is_over:
            self.left = True
            self.wake()

    def cut(self) -> None:
        """End it because its reader takes too little; a write that waits for it is cancelled."""
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
        while not (self.pieces or self.is_over or self.keep_alive_due):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    async def ended(self) -> None:
        """Return when it is over."""
        while not self.is_over:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


class OpenCalls:
    """Every open call of this process, by request."""

    def __init__(self, *, buffer_bytes_max: int) -> None:
        """More unwritten bytes than `buffer_bytes_max` cut a stream."""
        self._buffer_bytes_max = buffer_bytes_max
        self._calls: dict[UUID, OpenCall] = {}
        self._coming_count = 0
        self.of_tenant: Counter[UUID] = Counter()
        self.of_pool: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[OpenCall]:
        return iter(list(self._calls.values()))

    @property
    def count(self) -> int:
        """Calls that have a place, those that are on their way to being open included."""
        return len(self._calls) + self._coming_count

    @contextmanager
    def coming(self, job: JobRef) -> Iterator[None]:
        """Keep the place of a call that was let in, while it is committed or stored."""
        self._coming_count += 1
        self._take_place(job)
        try:
            yield
        finally:
            self._coming_count -= 1
            self._give_place_back(job)

    def add(self, call: OpenCall) -> None:
        """Wait for replies to `call` from now on."""
        self._calls[call.job.job_id] = call
        self._take_place(call.job)
        metrics.OPEN.set(len(self._calls))

    def remove(self, call: OpenCall) -> None:
        """Forget a call; what still comes for it is dropped."""
        del self._calls[call.job.job_id]
        self._give_place_back(call.job)
        metrics.OPEN.set(len(self._calls))

    def sweep(self, *, now_s: float, keep_alive_s: float, slow_reader_s: float) -> None:
        """Let silent streams say that they live; cut those whose reader takes nothing."""
        for call in self:
            if call.sending_since_s is not None:
                if now_s - call.sending_since_s > slow_reader_s:
                    call.cut()
            elif call.is_stream and now_s - call.quiet_since_s >= keep_alive_s:
                call.keep_alive_due = True
                call.quiet_since_s = now_s
                call.wake()

    def find(self, request_id: UUID) -> OpenCall | None:
        """Return an open call."""
        return self._calls.get(request_id)

    def hear(self, replies: list[Reply], *, now_s: float) -> None:
        """Hand out what arrived."""
        for reply in replies:
            call = self._calls.get(reply.request_id)
            if call is None:
                metrics.REPLIES_DROPPED.labels("nobody_waits").inc()
                continue
            if reply.pieces:
                metrics.PIECES.inc(len(reply.pieces))
            call.hear(reply, now_s=now_s)
            if call.buffered_bytes > self._buffer_bytes_max and call.sending_since_s is not None:
                call.cut()

    def may_run(self, request_id: UUID, *, now_s: float) -> bool:
        """Whether a call that was delivered a second time may run.

        One of which something was heard may not: its first execution either goes on, which its
        next reply shows, or died, and then it ends as interrupted.
        """
        call = self._calls.get(request_id)
        if call is None or call.is_over:
            return False
        if call.execution_id is None:
            return True
        call.doubted_s = now_s if call.doubted_s is None else call.doubted_s
        return False

    def end_doubted(self, *, now_s: float) -> None:
        """End the calls whose execution must have died."""
        for call in self:
            if call.doubted_s is not None and now_s - call.doubted_s > DOUBT_S_MAX:
                call.fail(stream_interrupted())

    def fail_unanswered(self, *, sent_before_s: float) -> None:
        """End what was sent before a moment since when others take this process for dead."""
        for call in self:
            if call.opened_s < sent_before_s and not call.is_durable:
                call.fail(stream_interrupted() if call.execution_id else log_unavailable())

    def _take_place(self, job: JobRef) -> None:
        self.of_tenant[job.tenant_id] += 1
        self.of_pool[job.pool] += 1

    def _give_place_back(self, job: JobRef) -> None:
        self.of_tenant[job.tenant_id] -= 1
        if not self.of_tenant[job.tenant_id]:
            del self.of_tenant[job.tenant_id]
        self.of_pool[job.pool] -= 1


def slow_reader() -> ApiError:
    """Return why a stream is cut whose reader does not keep up."""
    return ApiError(408, "The stream was read too slowly.", code=SLOW_READER)


def stream_interrupted() -> ApiError:
    """Return why a stream ends whose execution is lost."""
    return ApiError(
        502, "The answer was interrupted.", kind="server_error", code="stream_interrupted"
    )


def deadline_exceeded() -> ApiError:
    """Return why a call ends at its deadline."""
    return ApiError(
        504, "The call was not answered in time.", kind="timeout_error", code="deadline_exceeded"
    )


def shutting_down() -> ApiError:
    """Return why a call ends that outlasts the process that holds it."""
    return unavailable("The server is restarting.", retry_after_s=1, code="server_restarting")
