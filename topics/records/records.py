"""Record schemas of the log, all on one page: msgspec structs as MessagePack arrays (ADR 2).

Bodies are bytes, never parsed between the file and the engine. Fields are only ever appended, with
a default; a change that an old reader would misread raises the kind's number in `SCHEMA_VERSIONS`.
"""

from typing import Final
from uuid import UUID

import msgspec

from core.outcomes import Outcome
from core.states import CloseReason
from core.urgency import PRIORITY_DEFAULT


class Record(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Base of all records: positional on the wire, not tracked by the collector."""


class CallRef(Record, frozen=True):
    """The open HTTP call behind an online request: where its answer goes, and whose it is."""

    caller_id: str  # the API replica that asked; new at each start
    reply_partition: int  # of `replies`, the one that this replica reads
    stream: bool = False  # pieces are wanted as they come
    durable: bool = False  # its outcome goes to `results` too; its caller's silence ends nothing
    begin_by_s: float = 0.0  # by its caller's clock; later it must not begin; 0: until the deadline


class JobRef(Record, frozen=True):
    """What every record says about its job, so that no reader needs the database.

    An online request is a job of one item; `call` tells it from a batch.
    """

    job_id: UUID
    day: int  # days since 1970-01-01 of the job's creation; names the partition of `items`
    tenant_id: UUID
    model: str  # the name that the client used
    model_version: str
    pool: str
    endpoint: str  # e.g. `/v1/embeddings`
    input_key: str  # object key of the input file, for items that travel by reference
    deadline_s: float  # `expires_at` as seconds since the epoch, by the database's time
    traceparent: str = ""  # W3C trace context of the call that created the job
    call: CallRef | None = None  # of an online request; `deadline_s` is then by its caller's clock
    version: int = 0  # of the job's control state that the record was emitted under
    priority: int = PRIORITY_DEFAULT  # as of then, among the jobs of its tenant; the highest first
    key_name: str = ""  # object of the data key that bodies are encrypted under; empty: in clear


class Item(Record, frozen=True):
    """One line of an input file, on its way to an engine."""

    index: int  # 0-based position among the items of the job
    custom_id: str
    body: bytes  # JSON request body; empty when it travels by reference
    token_count: int  # estimate: prompt plus requested output
    attempt: int = 1
    offset: int = 0  # of the whole line in the input file, bytes
    length: int = 0  # of the line; non-zero only when it travels by reference


class Chunk(Record, frozen=True):
    """Items of one job, in index order: the record of `requests.*` and a part of a batch."""

    job: JobRef
    items: list[Item]
    redelivered: bool = False  # a batcher read it a second time: it may have been dispatched before
    waited_s: float = 0.0  # in the batcher, from arrival to dispatch; set in a batch


class Batch(Record, frozen=True):
    """What an engine runs together: one pool, model version and endpoint (`batches.*`)."""

    batch_id: UUID
    batcher_id: str  # who spends its credit
    parts: list[Chunk]
    replica_id: str = ""  # whose credit is spent, and of which epoch
    epoch: int = 0


class ItemOutcome(Record, frozen=True):
    """How one execution of an item ended. Usage counts tokens; text never enters the error."""

    index: int
    custom_id: str | None  # None when the record that carried it could not be read
    outcome: Outcome
    status_code: int  # HTTP status of the answer; 0 when there is none
    body: bytes  # JSON answer, or the JSON error envelope; empty when there is none
    error_code: str | None = None  # stable code when the failure is ours, not an HTTP answer
    error_message: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    attempt: int = 1
    body_key: str | None = None  # object that holds a body too large for a record; `body` is empty
    retryable: bool = False  # a failure that may pass: the judge lets the item try again or not
    offset: int = 0  # as `Item.offset`, of a failure only: where to find what failed


class Outcomes(Record, frozen=True):
    """Outcomes of items of one job (`results`, keyed by job)."""

    job: JobRef
    items: list[ItemOutcome]


class JobClose(Record, frozen=True):
    """No result behind this record counts; items without a row get one (`results`, by job)."""

    job_id: UUID
    day: int
    reason: CloseReason


class CopiesDue(Record, frozen=True):
    """Copies in this span take over the result of their original where it is there already.

    On `results`, by job. Those whose original ends later take it over then, and need no record.
    """

    job_id: UUID
    first_index: int
    end_index: int  # the first one behind the span


class ReplyEnd(Record, frozen=True):
    """How an execution of an online request ended; nothing follows it."""

    status_code: int  # HTTP status; a stream that broke off after its first piece has one >= 400
    body: bytes  # JSON answer or error envelope; empty at the good end of a stream
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    waited_s: float = 0.0  # in the batcher
    execution_s: float = 0.0  # in the engine, its queue included
    body_key: str | None = None  # object that holds a body too large for a record; `body` is empty


class Reply(Record, frozen=True):
    """A part of the answer to one online request, in order within one execution."""

    request_id: UUID
    execution_id: UUID  # new for each, also of one record that two replicas run; they never mix
    pieces: list[bytes]  # JSON payloads of server-sent events
    end: ReplyEnd | None = None  # without pieces and end it says that the execution has begun


class Replies(Record, frozen=True):
    """What a replica has for one caller now (`replies`, at the caller's partition)."""

    caller_id: str
    replica_id: str
    replies: list[Reply]
    questions: list[UUID] = []  # requests that came a second time: may they run?


class CallerHeartbeat(Record, frozen=True):
    """A sign of life of an API replica, and what it decided of its calls (`callers`)."""

    caller_id: str
    now_s: float  # the clock that its deadlines are by, seconds since the epoch
    aborted: list[UUID] = []  # nobody waits for these any more
    permitted: list[UUID] = []  # answers to questions: these may run
    leaving: bool = False  # its last word: connection-bound calls are over


class JobControl(Record, frozen=True):
    """The whole control state of a job, not a delta (`control`, compacted, keyed by job).

    It says more than the `JobRef` of a record with a lower `version`. A close is the last word.
    """

    job_id: UUID
    version: int
    closed: CloseReason | None = None
    paused: bool = False  # nothing is emitted until it is resumed
    priority: int = PRIORITY_DEFAULT
    deadline_s: float = 0.0  # `expires_at`, by the database's time
    void_below: int = 0  # records of a lower version count as lost: what they hold is emitted again


class Capacity(Record, frozen=True):
    """What a replica can take, absolute and repeated (`capacity`, keyed by replica).

    `granted` maps a batcher to the items it may have sent to this replica epoch in all, as the
    flow-control window of HTTP/2 does (RFC 9113, 5.2).
    """

    replica_id: str
    epoch: int  # a new one voids every grant of the old
    pool: str
    job_class: str
    partitions: list[int]  # of `batches.<pool>.<class>` that this replica reads
    granted: dict[str, int]
    items_per_s: float  # measured; 0 while unknown
    concurrency: int  # items that the engine runs at once
    available: bool = True  # False: the pool is away, grants are void
    in_danger: bool = False  # holds what may have ended a process: others are served first


class Demand(Record, frozen=True):
    """What a batcher holds for a pool (`demand`, keyed by batcher)."""

    batcher_id: str
    job_class: str
    waiting: dict[str, int]  # pool to items
    now_s: float = 0.0  # the database's time, a bit early at most; 0 while it is not known


class JobEvent(Record, frozen=True):
    """A change of a job's state that others may want to hear of (`events`, keyed by job)."""

    event_id: UUID
    job_id: UUID
    tenant_id: UUID
    state: str
    at_s: float  # seconds since the epoch, by the database's time


class DeadLetter(Record, frozen=True):
    """A record that could not be read, as it was, with where it lay (`dead_letters`)."""

    topic: str
    partition: int
    offset: int
    code: str
    key: bytes | None
    headers: list[tuple[str, bytes]]
    value: bytes


class FailedItemAttempt(Record, frozen=True):
    """One execution of an item that failed."""

    attempt: int
    status_code: int  # 0 when there was no answer
    code: str
    at_s: float  # seconds since the epoch, by the database's time


class DeadItem(Record, frozen=True):
    """An item that failed for good; its line and its answer are in the files of its job."""

    index: int
    custom_id: str | None
    attempts: list[FailedItemAttempt]  # in order; the last one is why it failed


class DeadItems(Record, frozen=True):
    """Items of one job that failed for good in one commit (`dead_letters`)."""

    job_id: UUID
    day: int
    tenant_id: UUID
    items: list[DeadItem]


class AttemptUnit(Record, frozen=True):
    """Items of a batch that run together, by their positions in it."""

    first: int
    count: int
    crashes: int  # executions of them that ended with their process


class BatchAttempt(Record, frozen=True):
    """How far the owner of a redelivered batch has come (`attempts`, compacted, keyed by batch).

    It is acknowledged before the first of its units begins, so that the next owner knows what ran.
    """

    batch_id: UUID
    life: int  # of the owners that ran it so: the highest tells, a paused one comes too late
    units: list[AttemptUnit]  # what is left to run, in order
    is_running: bool  # the first unit; False: its owner let go of it in good order
    in_company: bool = False  # others are in the engine, and may end the process as well


KINDS: Final[dict[type[Record], str]] = {
    Chunk: "chunk",
    Batch: "batch",
    Outcomes: "outcomes",
    JobClose: "close",
    CopiesDue: "copies_due",
    Replies: "replies",
    CallerHeartbeat: "caller_news",
    JobControl: "control",
    Capacity: "capacity",
    Demand: "demand",
    JobEvent: "event",
    DeadLetter: "dead_letter",
    DeadItems: "dead_items",
    BatchAttempt: "attempt",
}
"""The value of the `kind` header of each record type."""

SCHEMA_VERSIONS: Final[dict[str, int]] = dict.fromkeys(KINDS.values(), 1) | {"close": 2}
"""The newest version of each kind that this release can read."""
