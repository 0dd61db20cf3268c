"""Types that the steps of an online call pass on to each other."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from starlette.types import Message

from jobs.store.idempotency import IdempotencyClaim
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records.records import JobRef

RawHeaders = list[tuple[bytes, bytes]]


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
    token_count: int  # estimate: prompt plus requested output


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

    def left_s(self, wait_s: float, *, now_s: float) -> float:
        """Return the rest of a timeout of this call; 0 when it has passed."""
        return max(0.0, wait_s - (now_s - self.planned_s))

    @property
    def is_durable(self) -> bool:
        """Whether the call outlives its connection."""
        return self.job.call is not None and self.job.call.durable


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """A response that is sent at once, as opposed to a stream."""

    status: int
    body: bytes
    headers: RawHeaders
    input_tokens: int = 0
    output_tokens: int = 0


class Recording(Protocol):
    """Records a stream while it is sent, so that it can be replayed."""

    async def record(self, message: Message) -> None:
        """Record one ASGI message, before it is sent."""
        ...

    async def close(self) -> None:
        """End the recording. Called at the end of every call, perhaps more than once."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call that is ready to be sent. A durable one is committed to Postgres."""

    job: JobRef | None  # to produce; None: `answer` is a replay and nothing is sent
    answer: CompleteResponse | None = None  # a replay, or the 202 of a call in the background
    wait_s: float | None = None  # after it the response is a 202; None: wait until the deadline
    line_bytes: int = 0  # length of the line stored under the job's `input_key`
    recording: Recording | None = None  # of the stream that is sent to the client
    headers: tuple[tuple[bytes, bytes], ...] = ()  # of every response to the call
    claim: IdempotencyClaim | None = (
        None  # of the idempotency key; saved with the 202, if one is sent
    )
