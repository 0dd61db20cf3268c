"""What the parts of an online call hand to each other."""

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from starlette.types import Message

from jobs.store.idempotency import Claim
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records.records import JobRef

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(slots=True)
class ParsedCall:
    """A call as its client sent it."""

    endpoint: str
    body: bytes  # as the engine gets it, without fields that are ours; empty once it is sent
    model: str
    stream: bool
    timeout_s: float | None  # what the body asks for
    queue_timeout_s: float | None  # the same, for the wait until its execution
    background: bool
    token_count: int  # estimate: prompt plus requested output


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A call that may be sent: who asks, who serves, and until when."""

    request_id: UUID  # `x-request-id`, and the job of a durable call
    principal: Principal
    parsed: ParsedCall
    route: ModelVersion
    job: JobRef  # what its record says
    timeout_s: float
    queue_timeout_s: float | None  # None: it may wait until its deadline
    planned_s: float  # monotonic; its times count from here

    def left_s(self, wait_s: float, *, now_s: float) -> float:
        """Return what is left of a time of this call; 0 when it is over."""
        return max(0.0, wait_s - (now_s - self.planned_s))

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.job.call is not None and self.job.call.durable


@dataclass(frozen=True, slots=True)
class CompleteResponse:
    """An answer that is whole."""

    status: int
    body: bytes
    headers: RawHeaders
    input_tokens: int = 0
    output_tokens: int = 0


class Recording(Protocol):
    """What is sent, remembered so that it can be given again."""

    async def record(self, message: Message) -> None:
        """Take in one more message, before it is sent."""
        ...

    async def close(self) -> None:
        """End it; called however the call ended, perhaps more than once."""
        ...


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A durable call that is committed: nothing that happens to this process loses it."""

    job: JobRef | None  # to produce; None where `answer` is all there is to do
    answer: CompleteResponse | None = None  # of an earlier try, or the word that it was accepted
    wait_s: float | None = None  # after it the answer is `accepted`; None: until the deadline
    line_bytes: int = 0  # of the line stored under the job's `input_key`
    recording: Recording | None = None  # of what is sent to the client
    headers: tuple[tuple[bytes, bytes], ...] = ()  # of whatever the answer will be
    claim: Claim | None = None  # whose answer is `accepted`, if that is what is answered
