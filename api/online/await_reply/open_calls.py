"""The calls that clients wait for now: their places, their silences, their slow readers."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from api.online import metrics
from api.online.answer.call_failures import log_unavailable, stream_interrupted
from api.online.await_reply.open_call import OpenCall
from topics.records.records import JobRef, Reply

RERUN_SILENCE_S_MAX: Final = 2.0
"""Silence of a stream, after a second delivery of its call, that means its execution died."""


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

    def check_streams(self, *, now_s: float, keep_alive_s: float, slow_reader_s: float) -> None:
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

    def receive_replies(self, replies: list[Reply], *, now_s: float) -> None:
        """Hand out what arrived."""
        for reply in replies:
            call = self._calls.get(reply.request_id)
            if call is None:
                metrics.REPLIES_DROPPED.labels("nobody_waits").inc()
                continue
            if reply.pieces:
                metrics.PIECES.inc(len(reply.pieces))
            call.receive_reply(reply, now_s=now_s)
            if call.buffered_bytes > self._buffer_bytes_max and call.sending_since_s is not None:
                call.cut()

    def may_run(self, request_id: UUID, *, now_s: float) -> bool:
        """Whether a call that was delivered a second time may run.

        One of which something was heard may not: its first execution either goes on, which its
        next reply shows, or died, and then it ends as interrupted.
        """
        call = self._calls.get(request_id)
        if call is None or call.has_ended:
            return False
        if call.execution_id is None:
            return True
        call.doubted_s = now_s if call.doubted_s is None else call.doubted_s
        return False

    def end_abandoned(self, is_dead: Callable[[str], bool]) -> None:
        """End the begun calls of pools without any replica: nobody may come to ask for them."""
        dead = {pool for pool in self.of_pool if is_dead(pool)}
        for call in self if dead else ():
            if call.job.pool in dead and call.execution_id is not None:
                call.fail(stream_interrupted())

    def end_doubted(self, *, now_s: float) -> None:
        """End the calls whose execution must have died."""
        for call in self:
            if call.doubted_s is not None and now_s - call.doubted_s > RERUN_SILENCE_S_MAX:
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
