"""The open calls of this process: counts, lost executions and slow readers."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final
from uuid import UUID

from api.online import metrics
from api.online.await_reply.open_call import OpenCall
from api.online.call_errors import log_unavailable, stream_interrupted
from topics.records.records import JobRef, Reply

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

    def receive_replies(self, replies: list[Reply], *, now_s: float) -> None:
        """Deliver replies to their calls."""
        for reply in replies:
            call = self._calls.get(reply.request_id)
            if call is None:
                metrics.REPLIES_DROPPED.labels("nobody_waits").inc()
                continue
            if reply.pieces:
                metrics.PIECES.inc(len(reply.pieces))
            call.receive_reply(reply, now_s=now_s)
            if call.buffered_bytes > self._buffer_bytes_max and call.sending_since_s is not None:
                call.cut_off_slow_reader()

    def may_rerun(self, request_id: UUID, *, now_s: float) -> bool:
        """Whether a call that was delivered a second time may be executed again.

        A call that has received a part of its reply may not: either its first execution continues,
        as the next reply will show, or it is lost, and the call ends as interrupted.
        """
        call = self._calls.get(request_id)
        if call is None or call.has_ended:
            return False
        if call.execution_id is None:
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

    def _decrement(self, job: JobRef) -> None:
        self.count_by_tenant[job.tenant_id] -= 1
        if not self.count_by_tenant[job.tenant_id]:
            del self.count_by_tenant[job.tenant_id]
        self.count_by_pool[job.pool] -= 1
