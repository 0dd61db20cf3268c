"""An online call as its steps pass it on, with its time limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from api.online.admit.token_charges import Charge
from api.online.call_errors import deadline_exceeded
from api.online.exchange import CompleteResponse, Exchange, RawHeaders, Recording
from core.bodies.token_estimates import RequestedTokens
from core.clock import Clock
from jobs.store.idempotency import IdempotencyClaim
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records.records import JobRef, ReplyEnd


@dataclass(slots=True)
class Timings:
    """Times of a call on the monotonic clock of this process."""

    arrived_s: float
    sent_s: float = 0.0
    replied_s: float = 0.0  # first piece, or the end; 0: no reply yet

    def gateway_ms(self) -> float:
        """Return the time from the request's head to its record."""
        return (self.sent_s - self.arrived_s) * 1000

    def at_stream_head(self) -> bytes:
        """Return the durations known when a stream starts: the queue ends with the first piece."""
        if not self.replied_s:
            return b"gateway;dur=%.2f" % self.gateway_ms()
        queue_ms = (self.replied_s - self.sent_s) * 1000
        return b"gateway;dur=%.2f, queue;dur=%.2f" % (self.gateway_ms(), max(0.0, queue_ms))

    def at_end(self, end: ReplyEnd, *, now_s: float) -> bytes:
        """Return all durations. The queue is the time that no other stage accounts for."""
        batch_ms, execution_ms = end.waited_s * 1000, end.execution_s * 1000
        log_ms = (self.replied_s - self.sent_s) * 1000 - batch_ms - execution_ms
        return (
            b"gateway;dur=%.2f, queue;dur=%.2f, batch;dur=%.2f, execution;dur=%.2f,"
            b" postprocess;dur=%.2f"
        ) % (
            self.gateway_ms(),
            max(0.0, log_ms),
            batch_ms,
            execution_ms,
            (now_s - self.replied_s) * 1000,
        )


@dataclass(slots=True)
class ParsedCall:
    """The body of a call as the client sent it."""

    endpoint: str
    body: bytes  # for the engine, without Millrace's own fields; emptied once the record is sent
    model: str
    stream: bool
    timeout_s: float | None  # requested in the body
    queue_timeout_s: float | None  # requested in the body
    background: bool
    requested: RequestedTokens
    client_body: bytes = b""  # of a degraded call that is not prepared: the body before


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call with its tenant, its model version and its deadline."""

    request_id: UUID  # `x-request-id`, and the job id of a durable call
    principal: Principal
    parsed: ParsedCall
    route: ModelVersion
    job: JobRef  # as the record carries it
    timeout_s: float
    queue_timeout_s: float | None  # None: the call may wait until its deadline
    planned_s: float  # monotonic; the call's timeouts count from here
    degraded_by: tuple[str, ...] = ()  # `model`, `output_tokens`: what was changed for load

    def left_s(self, wait_s: float, *, now_s: float) -> float:
        """Return the rest of a timeout of this call; 0 when it has passed."""
        return max(0.0, wait_s - (now_s - self.planned_s))

    @property
    def is_durable(self) -> bool:
        """Whether the call outlives its connection."""
        return self.job.call is not None and self.job.call.durable


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to be sent. A durable one is committed to Postgres."""

    job: JobRef | None  # to produce; None: `answer` is a replay and nothing is sent
    answer: CompleteResponse | None = None  # a replay, or the 202 of a call in the background
    wait_s: float | None = None  # after it the response is a 202; None: wait until the deadline
    line_bytes: int = 0  # length of the line stored under the job's `input_key`
    recording: Recording | None = None  # of the stream that is sent to the client
    headers: tuple[tuple[bytes, bytes], ...] = ()  # of every response to the call
    claim: IdempotencyClaim | None = None  # of the idempotency key


@dataclass(frozen=True, slots=True)
class ReceivedCall:
    """An authenticated call as its client sent it."""

    exchange: Exchange
    principal: Principal
    parsed: ParsedCall


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """A call that passed all checks."""

    exchange: Exchange
    planned: PlannedCall
    prepared: PreparedCall
    charge: Charge  # of the tenant's rate limits
    headers: RawHeaders  # of every response to the call
    cache_key: bytes | None  # None: the response is not cached
    timings: Timings


@asynccontextmanager
async def time_limit(left_s: float) -> AsyncIterator[None]:
    """Cancel the block after `left_s`. Raises ApiError (504) then."""
    try:
        async with asyncio.timeout(left_s):
            yield
    except TimeoutError:
        raise deadline_exceeded() from None


def call_deadline(
    call: PlannedCall, clock: Clock, *, wait_s: float | None = None
) -> AbstractAsyncContextManager[None]:
    """Cancel the block at the deadline of a call, or when its client has waited for `wait_s`.

    Raises ApiError (504) then.
    """
    limit_s = call.timeout_s if wait_s is None else min(wait_s, call.timeout_s)
    return time_limit(call.left_s(limit_s, now_s=clock.monotonic_s()))
