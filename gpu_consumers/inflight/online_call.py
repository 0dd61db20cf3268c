"""One online call in flight on this replica."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from uuid import UUID

from gpu_consumers.engines.engine import EngineAnswer, UsageMeter
from gpu_consumers.inflight.replies import ReplyStream
from storage.crypto.body_ciphers import BodyCipher
from topics.clients.offset_tracker import Partition
from topics.records.attempts import BatchAttempt
from topics.records.records import Batch, Item, JobRef


class CallAbortReason(StrEnum):
    """Why a call ends without an answer of the engine; the value is a metric's label."""

    CALLER = "caller"  # its caller has aborted it, or left
    CLOSED = "closed"  # its job is closed, and the close record is its end
    DEADLINE = "deadline"
    DRAIN = "drain"  # this replica stops
    NO_VERSION = "no_version"  # it came here again and again, but its model version is not here
    OTHER_VERSION = "other_version"  # its model version is not here
    PIECE_TOO_LARGE = "piece_too_large"  # a piece of its stream fits no record
    OVERDUE = "overdue"  # it did not start in time
    POOL = "pool"  # the engine's upstream or the object store is unavailable
    SILENT = "silent"  # its caller is dead
    UNPERMITTED = "unpermitted"  # it was redelivered, and its caller did not permit a rerun


NO_ANSWER: Final = EngineAnswer(0, b"")
"""Token counts of an execution that are not known."""

REQUEUED = frozenset({CallAbortReason.POOL, CallAbortReason.DRAIN, CallAbortReason.OTHER_VERSION})
"""Reasons that are no fault of the call: it may run on another replica, or later."""


@dataclass(slots=True, eq=False)
class OnlineCall:
    """A call, its reply stream and progress, and the means to abort it."""

    batch: Batch
    job: JobRef
    item: Item
    replies: ReplyStream
    arrived_s: float  # monotonic
    is_redelivered: bool  # and its caller has not permitted a rerun yet
    waited_s: float  # in the batcher
    token_charge: float | None  # weighted tokens, charged to its tenant; None: unknown
    partition: Partition  # from which it was delivered
    generation: int = 0  # of the partition assignment that delivered it
    attempt: BatchAttempt | None = None  # of this execution, as recorded
    is_charged: bool = False  # the crashes in its last attempt are attributed to it
    is_requeued: bool = False  # or about to be: another replica may run it
    is_revoked: bool = False  # its partition has another owner, who writes its attempts
    task: asyncio.Task[None] | None = None
    abort_reason: CallAbortReason | None = None
    is_abortable: bool = True  # False once its end is being published
    awaits_heartbeat: bool = False  # of its silent caller, without a slot of the engine
    has_started: bool = False  # it has a slot of the engine
    piece_count: int = 0
    meter: UsageMeter = field(init=False)
    executed: EngineAnswer | None = None  # if it was aborted: token counts so far, if known
    queued_s: float = 0.0  # on the log, until a batcher read it
    execution_s: float = 0.0
    cipher: BodyCipher | None = None  # of a tenant that retains nothing, once the key is loaded
    _start_timeout: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self.meter = UsageMeter(self._on_start)

    @property
    def request_id(self) -> UUID:
        """The id that the caller, the batcher and the replica use."""
        return self.job.job_id

    @property
    def delivered(self) -> EngineAnswer | None:
        """The token counts of the part that an aborted call sent to its caller."""
        return self.executed if self.piece_count else None

    @property
    def is_durable(self) -> bool:
        """Whether its outcome is stored; the outcome of a call without a caller always is."""
        return self.job.call is None or self.job.call.durable

    @property
    def is_stream(self) -> bool:
        """Whether its caller expects a stream."""
        return self.job.call is not None and self.job.call.stream

    def abort(self, reason: CallAbortReason) -> None:
        """Cancel the execution, unless its end is being published; the first reason counts."""
        if self._set_abort_reason(reason):
            # Not at once: a cancellation from inside the task would arrive after its answer.
            asyncio.get_running_loop().call_soon(self._cancel)

    def abort_unless_started(self, timeout_s: float) -> None:
        """Abort the call after `timeout_s`, unless it has started or ended by then."""
        loop = asyncio.get_running_loop()
        self._start_timeout = loop.call_later(timeout_s, self._abort_overdue)

    def end_execution(self) -> None:
        """Prevent further aborts and release the body: the end of the call is known."""
        self.is_abortable = False
        self._cancel_start_timeout()
        self.meter = UsageMeter()  # the old one refers to the call

    def _on_start(self) -> None:
        if not self.has_started:
            self.has_started = True
            self._cancel_start_timeout()
            self.replies.send_start()

    def _cancel_start_timeout(self) -> None:
        if self._start_timeout is not None:
            self._start_timeout.cancel()
            self._start_timeout = None

    def _abort_overdue(self) -> None:
        """Cancel at once: in the next iteration of the event loop the call may get its slot."""
        if self._set_abort_reason(CallAbortReason.OVERDUE):
            self._cancel()

    def _set_abort_reason(self, reason: CallAbortReason) -> bool:
        if not self.is_abortable or self.abort_reason is not None:
            return False
        self.abort_reason = reason
        self.executed = self.meter.with_usage(NO_ANSWER)
        return True

    def _cancel(self) -> None:
        if self.is_abortable and self.task is not None:
            self.task.cancel()
