"""One online request in the hands of this replica."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from gpu_consumers.engines.engine import EngineAnswer, UsageMeter
from gpu_consumers.inflight.replies import ReplyStream
from gpu_consumers.payloads.fingerprints import Stamp, stamp_of
from storage.crypto.body_ciphers import BodyCipher
from topics.clients.offsets import Partition
from topics.records.records import Attempt, Batch, Item, JobRef


class Cut(StrEnum):
    """Why a call ends here without an answer of the engine; the value is a metric's label."""

    CALLER = "caller"  # nobody waits for it any more, says news
    CLOSED = "closed"  # its job is closed, and that record is its end
    DEADLINE = "deadline"
    DRAIN = "drain"  # this replica leaves
    PIECE_TOO_LARGE = "piece_too_large"  # it fits no record
    OVERDUE = "overdue"  # it waited too long to begin
    POOL = "pool"  # the engine's upstream, or the object store, is away
    SILENT = "silent"  # its caller is dead
    UNPERMITTED = "unpermitted"  # it may have run before, and its caller did not say that it may


_NOTHING = EngineAnswer(0, b"")

HANDED_BACK = frozenset({Cut.POOL, Cut.DRAIN})
"""Cuts that are no fault of the call: it may run elsewhere, or later."""


@dataclass(slots=True, eq=False)
class OnlineCall:
    """A request, what was said of it so far, and how it can be stopped."""

    batch: Batch
    job: JobRef
    item: Item
    replies: ReplyStream
    arrived_s: float
    may_have_run: bool  # and nobody has permitted it yet
    waited_s: float  # in the batcher
    place: Partition  # that it lies on
    generation: int = 0  # of the assignment that brought it
    attempt: Attempt | None = None  # what the log tells of this execution, by us
    is_charged: bool = False  # with the ends of processes that the log tells of
    has_moved: bool = False  # its partition has another owner, who alone tells of it from then on
    task: asyncio.Task[None] | None = None
    cut: Cut | None = None
    is_cuttable: bool = True  # False once its end is being published
    awaits_news: bool = False  # of its silent caller, without a place in the engine
    has_begun: bool = False  # it has a place in the engine
    piece_count: int = 0
    meter: UsageMeter = field(init=False)
    spent: EngineAnswer | None = (
        None  # counts of what was delivered when it was cut; else nothing was
    )
    execution_s: float = 0.0
    cipher: BodyCipher | None = None  # of a tenant that retains nothing, once its key is at hand
    _patience: asyncio.TimerHandle | None = None  # runs while it must begin in time
    kept: list[bytes] = field(default_factory=list)  # pieces of a durable stream, for its outcome

    def __post_init__(self) -> None:
        """Follow its begin."""
        self.meter = UsageMeter(self._begin)

    @property
    def request_id(self) -> UUID:
        """The id that caller, batcher and replica know it by."""
        return self.job.job_id

    @property
    def stamp(self) -> Stamp:
        """Return what writes its model version into what is said."""
        return stamp_of(self.job.endpoint, self.job.model, self.job.model_version)

    @property
    def is_durable(self) -> bool:
        """Whether its outcome is kept. A request without a caller has nothing but its outcome."""
        return self.job.call is None or self.job.call.durable

    @property
    def is_stream(self) -> bool:
        """Whether its caller wants pieces."""
        return self.job.call is not None and self.job.call.stream

    def stop(self, cut: Cut) -> None:
        """End it as soon as the engine lets go; too late once its end is being published."""
        if self._may_cut(cut):
            # Not at once: a cancellation from inside the task would come up after its answer.
            asyncio.get_running_loop().call_soon(self._cancel)

    def wait_at_most(self, patience_s: float) -> None:
        """End it unless it begins or ends within this time."""
        self._patience = asyncio.get_running_loop().call_later(patience_s, self._stop_waiting)

    def settle(self) -> None:
        """Its end is certain: nothing cuts it short any more, and its body is not held any more."""
        self.is_cuttable = False
        self._need_no_patience()
        self.meter = UsageMeter()  # the old one refers to the call

    def _begin(self) -> None:
        if not self.has_begun:
            self.has_begun = True
            self._need_no_patience()
            self.replies.begun()

    def _need_no_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _stop_waiting(self) -> None:
        """Let go at once: in the next turn it may have its place."""
        if self._may_cut(Cut.OVERDUE):
            self._cancel()

    def _may_cut(self, cut: Cut) -> bool:
        if not self.is_cuttable or self.cut is not None:
            return False
        self.cut = cut
        self.spent = self.meter.with_usage(_NOTHING)
        return True

    def _cancel(self) -> None:
        if self.is_cuttable and self.task is not None:
            self.task.cancel()
