"""Record schemas of all topics: msgspec structs encoded as MessagePack arrays (ADR 2).

Bodies are bytes and are not parsed between the input file and the engine. New fields are appended,
with a default. A change that an old reader would misread increments the kind's `SCHEMA_VERSIONS`.
"""

from uuid import UUID

import msgspec

from core.outcomes import Outcome
from core.states import CloseReason
from core.tenant_claims import NORMAL_CLASS
from core.urgency import PRIORITY_DEFAULT


class Record(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """Base of all records: positional on the wire, not tracked by the garbage collector."""


class CallRef(Record, frozen=True):
    """The open HTTP call of an online request: its caller and where its reply goes."""

    caller_id: str  # the API replica that received the call; new at each start
    reply_partition: int  # the partition of `replies` that this replica reads
    stream: bool = False  # send pieces as they are generated
    durable: bool = False  # its outcome also goes to `results`; it outlives its caller
    begin_by_s: float = 0.0  # by the caller's clock: latest start; 0: the deadline


class JobRef(Record, frozen=True):
    """The job of a record, so that no reader needs the database.

    An online request is a job of one item with a `call`; a batch has none.
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
    version: int = 0  # of the job's control state when the record was emitted
    priority: int = PRIORITY_DEFAULT  # at that time, among the tenant's jobs; the highest first
    key_name: str = ""  # object of the data key that encrypts bodies; empty: not encrypted
    weight: int = 1  # of the tenant, when the record was emitted
    reserved: float = 0.0  # of the tenant: its reserved share of the pool, then
    tenant_class: int = NORMAL_CLASS  # of the tenant: the number of its priority class, then
    degraded: str = ""  # what the api changed of the call because of load; empty: nothing
    base_version: str = ""  # of an adapter: the version of the model that it adapts


class Item(Record, frozen=True):
    """One line of an input file, on its way to an engine."""

    index: int  # 0-based position among the items of the job
    custom_id: str
    body: bytes  # JSON request body; empty when it travels by reference
    token_count: int  # estimate: prompt plus expected output
    attempt: int = 1
    offset: int = 0  # of the whole line in the input file, bytes
    length: int = 0  # of the line; non-zero only when it travels by reference
    output_token_count: int = 0  # of the estimate, the output that is expected
    prefix_group: int = 0  # number of the job's prefix group that the prompt is in; 0: none


class Chunk(Record, frozen=True):
    """Items of one job in emission order: a record of `requests.*`, and a part of a batch."""

    job: JobRef
    items: list[Item]
    redelivered: bool = False  # read a second time by a batcher: may have been dispatched before
    waited_s: float = 0.0  # in the batcher, from arrival to dispatch; set in a batch
    charged: float | None = None  # weighted tokens that the batcher charged for it; set in a batch
    position: int | None = None  # of the first item in the job's order; None: its index
    queued_s: float = 0.0  # on the log, from its append to a batcher; set in a batch


class Batch(Record, frozen=True):
    """Items that an engine runs together: one pool, model version and endpoint (`batches.*`)."""

    batch_id: UUID
    batcher_id: str  # the batcher that spends its credit
    parts: list[Chunk]
    replica_id: str = ""  # the replica whose credit is spent, in `epoch`
    epoch: int = 0


class ItemOutcome(Record, frozen=True):
    """The outcome of one execution of an item. The error fields never hold text of the item."""

    index: int
    custom_id: str | None  # None when the item's record could not be read
    outcome: Outcome
    status_code: int  # HTTP status of the answer; 0 when there is none
    body: bytes  # JSON answer, or the JSON error envelope; empty when there is none
    error_code: str | None = None  # stable code of a failure without an HTTP answer
    error_message: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    attempt: int = 1
    body_key: str | None = None  # object that holds a body too large for a record; `body` is empty
    retryable: bool = False  # a possibly temporary failure: the results writer decides on a retry
    offset: int = 0  # as `Item.offset`, for failures only: locates the failed line
    queue_ms: int = 0  # of this execution, as the next three: see `core.stages.StageTimes`
    batch_wait_ms: int = 0
    execution_ms: int = 0
    ended_ms: int = 0


class Outcomes(Record, frozen=True):
    """Outcomes of items of one job, or processes that they crashed (`results`, keyed by job)."""

    job: JobRef
    items: list[ItemOutcome]
    process_ends: list[UUID] = []  # processes that its items crashed; then there are no outcomes
    engine: str = ""  # hash of the engine that ran the items; empty: unknown, or they did not run


class JobClose(Record, frozen=True):
    """Closes a job: later results do not count, and items without a row get one (`results`)."""

    job_id: UUID
    day: int
    reason: CloseReason  # one that every release knows
    crash_budget: bool = False  # the reason is CRASH_BUDGET; older releases read FAILURE_BUDGET

    @property
    def close_reason(self) -> CloseReason:
        """The reason for which the job was closed."""
        return CloseReason.CRASH_BUDGET if self.crash_budget else self.reason


class CopiesDue(Record, frozen=True):
    """Gives the duplicate items in an index range the results that their originals already have.

    On `results`, by job. A duplicate whose original ends later gets its result then.
    """

    job_id: UUID
    first_index: int
    end_index: int  # exclusive


class ReplyEnd(Record, frozen=True):
    """The end of one execution of an online request; no reply of it follows."""

    status_code: int  # HTTP status; >= 400 for a stream that broke off after its first piece
    body: bytes  # JSON answer or error envelope; empty when a stream succeeded
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    waited_s: float = 0.0  # in the batcher
    execution_s: float = 0.0  # in the engine, its queue included
    body_key: str | None = None  # object that holds a body too large for a record; `body` is empty
    engine: str = ""  # hash of the engine that ran the request; empty: unknown, or it did not run


class Reply(Record, frozen=True):
    """Pieces of the answer to one online request, in order within one execution."""

    request_id: UUID
    execution_id: UUID  # new for each execution, even of one record that two replicas run
    pieces: list[bytes]  # JSON payloads of server-sent events
    end: ReplyEnd | None = None  # neither pieces nor end: the execution has started
    only_here: bool = False  # the offset of the request is committed, so no other replica reads it


class Replies(Record, frozen=True):
    """The replies of a replica to one caller (`replies`, at the caller's partition)."""

    caller_id: str
    replica_id: str
    replies: list[Reply]
    questions: list[UUID] = []  # redelivered requests that need the caller's rerun permission


class CallerHeartbeat(Record, frozen=True):
    """The heartbeat of an API replica, with its abort and rerun decisions (`callers`)."""

    caller_id: str
    now_s: float  # the clock that its deadlines are by, seconds since the epoch
    aborted: list[UUID] = []  # requests whose client no longer waits
    permitted: list[UUID] = []  # redelivered requests that may run again
    leaving: bool = False  # its last heartbeat: all calls but durable ones are abandoned


class JobControl(Record, frozen=True):
    """The full control state of a job, not a delta (`control`, compacted, keyed by job).

    It replaces the `JobRef` of records with a lower `version`. A close is final.
    """

    job_id: UUID
    version: int
    closed: CloseReason | None = None
    paused: bool = False  # nothing is emitted until it is resumed
    priority: int = PRIORITY_DEFAULT
    deadline_s: float = 0.0  # `expires_at`, by the database's time
    void_below: int = 0  # records of a lower version count as lost; their items are emitted again
    watermark: int = 0  # not 0: no job, but the newest commits of the installation with this id
    commits_lost: bool = False  # the database lost commits up to `watermark`: all roles must stop


class OutputMean(Record, frozen=True):
    """The output that the results of a replica let expect."""

    endpoint: str
    tenant_id: UUID | None  # None: all tenants
    tokens: float  # of one sequence


class EndpointCompute(Record, frozen=True):
    """The measured time of a replica's engine for each token of one endpoint, while it is full."""

    endpoint: str
    prompt_token_s: float  # of a prompt token that no cache holds
    output_token_s: float


class LoadedModel(Record, frozen=True):
    """A model version at a replica."""

    version: str  # of the base model
    state: str  # `loading`, `warm` or `refused`
    engine: str = ""  # hash of vLLM's version, the device and the resolved options, once warm
    adapters: list[str] = []  # versions of the adapters that the engine holds
    reason: str = ""  # of `refused`: the label of `millrace_model_refused_total`
    adapters_max: int = 0  # adapters that the engine loads at once; 0: it takes none


class Capacity(Record, frozen=True):
    """The public state of a replica and class, absolute and repeated (`capacity`).

    `granted` is a snapshot of `ReplicaGrants.granted` for batchers of releases without `grants`.
    """

    replica_id: str
    epoch: int  # a new one voids every grant of the old
    pool: str
    job_class: str
    partitions: list[int]  # of `batches.<pool>.<class>` that this replica reads
    granted: dict[str, int]
    items_per_s: float  # measured; 0 while unknown
    concurrency: int  # items that the engine runs at once
    available: bool = True  # False: the pool is unavailable, grants are void
    in_danger: bool = False  # holds suspect items: other replicas are preferred
    in_flight_jobs: list[UUID] | None = None  # with items here for a while; None: unchanged
    output_means: list[OutputMean] | None = None  # of its results; None: unchanged
    compute: list[EndpointCompute] = []  # of the endpoints that it measured
    models: list[LoadedModel] = []  # none: the replica serves whatever its pool receives
    lifecycle: str = ""  # `starting`, `warm`, `draining` or `asleep`; empty: not known
    gpu_type: str = ""  # name in the scaling policy; empty: not known
    zone: str = ""
    spot: bool = False
    load_tokens: float = 0.0  # weighted tokens of items that are here and have not ended
    tokens_per_s: float = 0.0  # weighted tokens of ended items while the engine was full; 0: none
    waiting: int = 0  # sequences that wait in the engine
    kv_use: float = 0.0  # part of the engine's KV cache that is in use, 0 to 1
    leaves_at_s: float = 0.0  # when a spot GPU is taken away, Unix time; 0: no notice


class ReplicaGrants(Record, frozen=True):
    """What batchers need to send to a replica, absolute and repeated (`grants`).

    `granted` maps a batcher to the total of items that it may have sent in this replica epoch, like
    a flow-control window of HTTP/2 (RFC 9113, 5.2). The other fields are those of `Capacity`.
    """

    replica_id: str
    epoch: int
    pool: str
    job_class: str
    partitions: list[int]
    granted: dict[str, int]
    concurrency: int
    available: bool = True
    in_danger: bool = False
    versions: list[str] = []  # of base models that are warm here; none: not known by content
    adapters_max: int = 0  # adapters that the engine loads at once; 0: it takes none


class DemandTokens(Record, frozen=True):
    """The tokens of one pool at a batcher: estimates of prompts and of expected outputs, apart."""

    prompt_tokens: float  # of items that wait
    output_tokens: float
    arrived_items: int  # since the batcher started, of first deliveries
    arrived_prompt_tokens: float
    arrived_output_tokens: float
    deadline_s: float = 0.0  # the earliest of the items that wait; 0: none


class Demand(Record, frozen=True):
    """The items that a batcher has queued for each pool (`demand`, keyed by batcher)."""

    batcher_id: str
    job_class: str
    waiting: dict[str, int]  # pool to items
    now_s: float = 0.0  # the database's time, never late; 0 while unknown
    shares: dict[str, float] = {}  # pool to the part of its waiting tenants' weights that is here
    pools: dict[str, DemandTokens] = {}  # pools with arrivals or waiting items


class TenantService(Record, frozen=True):
    """A tenant of one pool at one batcher."""

    tenant_id: UUID
    served: float  # tokens divided by the weight; from 0 again if it was away for a minute
    waiting: int  # items
    lead: float = 0.0  # its counter above the lowest one of its class, in the unit of `served`
    charged: float = 0.0  # by any batcher, less refunds: a later refund is at most that
    weight: int = 0  # that `served` was divided by; 0: unknown, of an older release
    reserved: float = 0.0  # its reserved share of the pool
    tenant_class: int = NORMAL_CLASS  # the number of its priority class
    counter: float | None = None  # its virtual counter; None: nothing of it waits


class ServiceReport(Record, frozen=True):
    """The tenants of each pool at a batcher (`service`, keyed by batcher).

    Its numbers are absolute, and it is repeated.
    """

    batcher_id: str
    job_class: str
    pools: dict[str, list[TenantService]]


class TenantUsage(Record, frozen=True):
    """What items of one tenant used, less what batchers charged for them."""

    tenant_id: UUID
    correction: float  # weighted tokens divided by the tenant's weight


class JobUsage(Record, frozen=True):
    """What items of one job used, less what one batcher charged the job for them."""

    batcher_id: str
    tenant_id: UUID
    job_id: UUID
    correction: float  # weighted tokens


class UsageReport(Record, frozen=True):
    """What ended at a replica since its last report (`usage`, keyed by replica and class)."""

    replica_id: str
    pool: str
    job_class: str
    tenants: list[TenantUsage]
    jobs: list[JobUsage] = []


class JobEvent(Record, frozen=True):
    """A change of a job's state, for webhooks (`events`, keyed by job)."""

    event_id: UUID
    job_id: UUID
    tenant_id: UUID
    state: str
    at_s: float  # seconds since the epoch, by the database's time


class DeadLetter(Record, frozen=True):
    """A copy of an unreadable record, with its topic, partition and offset (`dead_letters`)."""

    topic: str
    partition: int
    offset: int
    code: str
    key: bytes | None
    headers: list[tuple[str, bytes]]
    value: bytes
