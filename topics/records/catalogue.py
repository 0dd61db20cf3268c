"""Declares every topic; `millrace topics` creates and checks them and draws the data flow."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from core.limits import RECORD_BYTES_MAX
from topics.records.attempts import BatchAttempt
from topics.records.dead_items import DeadItems
from topics.records.model_states import ModelKeyState, ModelState
from topics.records.records import (
    Batch,
    CallerHeartbeat,
    Capacity,
    Chunk,
    CopiesDue,
    DeadLetter,
    Demand,
    JobClose,
    JobControl,
    JobEvent,
    Outcomes,
    Record,
    ReplicaGrants,
    Replies,
    ServiceReport,
    UsageReport,
)
from topics.records.scaling import (
    AutoscalerEpoch,
    Backlog,
    DecisionEntry,
    PoolScaling,
    RoleLoad,
    ScalingOverride,
    WakeRequest,
)

HOUR_MS: Final = 3600 * 1000
DAY_MS: Final = 24 * HOUR_MS

COMPLETION_WINDOW_DAYS_MAX: Final = 30
RETENTION_DAYS: Final = COMPLETION_WINDOW_DAYS_MAX + 7
"""A week more than the longest completion window, so that no job outlives its records.
`KafkaSettings.retention_days` may shorten it for prompts and answers."""

SEGMENT_DAYS: Final = 7
"""Kafka's default `segment.ms`. A broker deletes whole segments, so in a quiet partition a record
outlives its retention by the time during which its segment was written."""

JOB_CLASSES: Final = ("bulk", "interactive")


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """One topic and its guarantees. `name` is without `topic_prefix`."""

    name: str
    records: tuple[type[Record], ...]
    key: str
    partition_count: int
    ordering: str  # guaranteed for equal keys
    written_by: tuple[str, ...]
    read_by: tuple[str, ...]
    retention_days: int = RETENTION_DAYS
    retention_hours: int = 0  # 0: `retention_days` applies
    holds_bodies: bool = False  # prompts or answers: `KafkaSettings.retention_days` applies
    compacted: bool = False
    expires: bool = True  # False, of a compacted topic: the newest record of a key stays for ever
    grows: bool = False  # it may have more partitions than `partition_count`
    options: dict[str, str] = field(default_factory=dict)

    def configuration(
        self, *, min_insync_replicas: int, bodies_days: int = RETENTION_DAYS
    ) -> dict[str, str]:
        """Return the configuration that the broker must report for the topic."""
        days = min(self.retention_days, bodies_days) if self.holds_bodies else self.retention_days
        retention_ms = self.retention_hours * HOUR_MS or days * DAY_MS
        common = {
            "max.message.bytes": str(RECORD_BYTES_MAX),
            "min.insync.replicas": str(min_insync_replicas),
        }
        if self.compacted:
            policy = {"cleanup.policy": "compact", "delete.retention.ms": str(DAY_MS)}
            if self.expires:  # a closed job's state, with its records
                policy |= {"cleanup.policy": "compact,delete", "retention.ms": str(retention_ms)}
        else:
            policy = {
                "cleanup.policy": "delete",
                "retention.ms": str(retention_ms),
                "message.timestamp.type": "LogAppendTime",
            }
        return common | policy | self.options

    def facts(self) -> dict[str, object]:
        """Return the properties as JSON shows them."""
        return {
            "name": self.name,
            "records": [record.__name__ for record in self.records],
            "key": self.key,
            "partitions": self.partition_count,
            "retention_days": self.retention_days,
            "compacted": self.compacted,
            "ordering": self.ordering,
            "written_by": list(self.written_by),
            "read_by": list(self.read_by),
        }


def _requests(job_class: str, writer: str) -> Topic:
    return Topic(
        name=f"requests.{job_class}",
        records=(Chunk,),
        key="pool, tenant",
        partition_count=16,
        ordering="none: item order is restored from the item index",
        written_by=(writer, "batcher", "gpu-consumer"),
        read_by=("batcher",),
        holds_bodies=True,
    )


REQUESTS_BULK = _requests("bulk", "intake")
REQUESTS_INTERACTIVE = _requests("interactive", "api")

RESULTS = Topic(
    name="results",
    records=(Outcomes, JobClose, CopiesDue),
    key="job",
    partition_count=8,
    ordering="all outcomes of a job and its close are judged in one order",
    written_by=("gpu-consumer", "batcher", "intake"),
    read_by=("results-writer",),
    holds_bodies=True,
)

CONTROL = Topic(
    name="control",
    records=(JobControl,),
    key="job; installation for its watermark",
    partition_count=1,
    ordering="the newest version of a job's control state is the last",
    written_by=("intake",),
    read_by=("batcher", "gpu-consumer", "api", "intake"),
    compacted=True,
    options={"segment.ms": str(3600 * 1000)},  # read in full at a start, so compact early
)

MODELS = Topic(
    name="models",
    records=(ModelState, ModelKeyState),
    key="model name and version; key id; each with its state",
    partition_count=1,
    ordering="the newest state of a version or key is the last",
    written_by=("intake",),
    read_by=("gpu-consumer",),
    compacted=True,
    expires=False,  # a replica loads only what this topic names
)

CAPACITY = Topic(
    name="capacity",
    records=(Capacity,),
    key="pool, replica, class",
    partition_count=1,
    ordering="the newest state of a replica and class is the last",
    written_by=("gpu-consumer",),
    read_by=("batcher", "intake", "api", "webhooks", "autoscaler"),
    retention_days=1,
)

GRANTS = Topic(
    name="grants",
    records=(ReplicaGrants,),
    key="replica, class",
    partition_count=len(JOB_CLASSES),
    ordering="the newest state of a replica and class is the last",
    written_by=("gpu-consumer",),
    read_by=("batcher",),
    retention_hours=1,  # void after seconds; a thousand busy replicas write 5 GB an hour
    options={"segment.ms": str(HOUR_MS // 6)},
)

DEMAND = Topic(
    name="demand",
    records=(Demand,),
    key="batcher",
    partition_count=1,
    ordering="the newest state of a batcher is the last",
    written_by=("batcher",),
    read_by=("api", "gpu-consumer", "autoscaler"),
    retention_days=1,
)

SERVICE = Topic(
    name="service",
    records=(ServiceReport,),
    key="batcher",
    partition_count=1,
    ordering="the newest state of a batcher is the last",
    written_by=("batcher",),
    read_by=("batcher", "api"),
    retention_days=1,
)

USAGE = Topic(
    name="usage",
    records=(UsageReport,),
    key="replica, class",
    partition_count=1,
    ordering="none",
    written_by=("gpu-consumer",),
    read_by=("batcher",),
    retention_days=1,
)

BACKLOG = Topic(
    name="backlog",
    records=(Backlog, WakeRequest, RoleLoad),
    key="process and pool; role and process of its load",
    partition_count=1,
    ordering="the newest state of a key is the last",
    written_by=("intake", "api"),
    read_by=("autoscaler",),
    retention_days=1,
)

SCALING = Topic(
    name="scaling",
    records=(AutoscalerEpoch, PoolScaling, ScalingOverride),
    key="pool; epoch; override and pool",
    partition_count=1,
    ordering="the newest state of a key is the last",
    written_by=("autoscaler",),
    read_by=("autoscaler", "api", "gpu-consumer"),
    compacted=True,
    expires=False,  # a pool at zero keeps the state with which it is woken
    options={"segment.ms": str(HOUR_MS)},  # read in full at a start, so compact early
)

SCALING_DECISIONS = Topic(
    name="scaling_decisions",
    records=(DecisionEntry,),
    key="pool",
    partition_count=1,
    ordering="decisions about a pool are in their order",
    written_by=("autoscaler",),
    read_by=("autoscaler",),
    retention_days=30,
)

REPLIES = Topic(
    name="replies",
    records=(Replies,),
    key="caller",
    partition_count=16,
    ordering="replies of one execution are in its order",
    written_by=("gpu-consumer",),
    read_by=("api",),
    retention_days=1,
)

CALLERS = Topic(
    name="callers",
    records=(CallerHeartbeat,),
    key="caller",
    partition_count=1,
    ordering="the newest state of a caller is the last",
    written_by=("api",),
    read_by=("batcher", "gpu-consumer"),
    retention_days=1,
)

ATTEMPTS = Topic(
    name="attempts",
    records=(BatchAttempt,),
    key="batch",
    partition_count=1,
    ordering="the newest attempt of a batch's latest owner is the last of that owner",
    written_by=("gpu-consumer",),
    read_by=("gpu-consumer",),
    compacted=True,
    options={"segment.ms": str(3600 * 1000)},  # read in full after a crash, so compact early
)

EVENTS = Topic(
    name="events",
    records=(JobEvent,),
    key="job",
    partition_count=4,
    ordering="events of a job are in the order of its states",
    written_by=("intake",),
    read_by=("webhooks",),
)

DEAD_LETTERS = Topic(
    name="dead_letters",
    records=(DeadLetter, DeadItems),
    key="none; the job of dead items",
    partition_count=1,
    ordering="none",
    written_by=("batcher", "gpu-consumer", "results-writer", "intake", "webhooks"),
    read_by=(),
    holds_bodies=True,
)

SHARED_TOPICS: Final = (
    REQUESTS_BULK,
    REQUESTS_INTERACTIVE,
    RESULTS,
    REPLIES,
    CALLERS,
    CONTROL,
    MODELS,
    CAPACITY,
    GRANTS,
    DEMAND,
    SERVICE,
    USAGE,
    BACKLOG,
    SCALING,
    SCALING_DECISIONS,
    ATTEMPTS,
    EVENTS,
    DEAD_LETTERS,
)

REQUESTS: Final = {"bulk": REQUESTS_BULK, "interactive": REQUESTS_INTERACTIVE}


def grants_partition(job_class: str) -> int:
    """Return the partition of `grants` with the records of a class: batchers read one class."""
    return JOB_CLASSES.index(job_class)


@lru_cache(maxsize=1024)  # batchers ask for each batch
def batches_topic(pool: str, job_class: str) -> Topic:
    """Return the topic with the batches of a pool's replicas; credits keep it short."""
    return Topic(
        name=f"batches.{pool}.{job_class}",
        records=(Batch,),
        key="replica",
        partition_count=8,
        ordering="none",
        grows=True,  # with the replicas of the pool
        # A replica requeues bulk batches whose outcomes wait for an unavailable partition.
        written_by=("batcher", "gpu-consumer") if job_class == "bulk" else ("batcher",),
        read_by=("gpu-consumer", "api"),  # the api shows which items are dispatched
        holds_bodies=True,
    )


def pool_topics(pool: str) -> tuple[Topic, ...]:
    """Return the topics of one pool."""
    return tuple(batches_topic(pool, job_class) for job_class in JOB_CLASSES)
