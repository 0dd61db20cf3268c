"""What the parts of an online call hand to each other, and the seams for durable ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from starlette.types import Send

from api.answers import ApiError
from registry.models import ModelVersion
from tenancy.api_keys import Principal
from topics.records import JobRef

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

    @property
    def is_durable(self) -> bool:
        """Whether it outlives its connection."""
        return self.job.call is not None and self.job.call.durable


@dataclass(frozen=True, slots=True)
class Finished:
    """An answer that is whole."""

    status: int
    body: bytes
    headers: RawHeaders
    input_tokens: int = 0
    output_tokens: int = 0


class Recording(Protocol):
    """What is sent, remembered so that it can be given again."""

    def over(self, send: Send) -> Send:
        """Return what sends like `send` and records."""
        ...

    async def close(self) -> None:
        """End it; called however the call ended."""
        ...


@dataclass(frozen=True, slots=True)
class Begun:
    """A durable call that is committed: nothing that happens to this process loses it."""

    job: JobRef | None  # to produce; None where `answer` is all there is to do
    answer: Finished | None = None  # of an earlier try, or the word that it was accepted
    wait_s: float | None = None  # after it the answer is `accepted`; None: until the deadline
    line_bytes: int = 0  # of the line stored under the job's `input_key`
    recording: Recording | None = None  # of what is sent to the client
    headers: tuple[tuple[bytes, bytes], ...] = ()  # of whatever the answer will be


class DurableCalls(Protocol):
    """Calls that outlive their connection."""

    async def begin(
        self, call: PlannedCall, headers: Mapping[bytes, bytes], refused: ApiError | None
    ) -> Begun:
        """Commit a call before it is produced. `headers` are by lower-case name.

        `refused` says why there is no room for it; what was answered before needs none. Raises it,
        ApiError for a call that may not be durable or whose key is in use, and DatabaseAwayError.
        """
        ...

    async def expire(self, call: PlannedCall) -> None:
        """Bring the deadline of a committed call forward to now: it was not begun in time."""
        ...

    def accepted(self, call: PlannedCall) -> Finished:
        """Return the 202 of a call that is committed and has no answer yet."""
        ...


class AnswerCache(Protocol):
    """Answers that may be given again. A key stands for tenant, version and canonical body."""

    def key_of(self, call: PlannedCall) -> bytes | None:
        """Return the key of a call whose answer may be kept, or None."""
        ...

    def find(self, key: bytes) -> Finished | None:
        """Return the answer that was kept."""
        ...

    def keep(self, key: bytes, answer: Finished) -> None:
        """Remember a good answer for a while."""
        ...
