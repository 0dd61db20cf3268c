"""The kind of each record type, as its header names it, and the versions that can be read."""

from typing import Final

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

KINDS: Final[dict[type[Record], str]] = {
    Chunk: "chunk",
    Batch: "batch",
    Outcomes: "outcomes",
    JobClose: "close",
    CopiesDue: "copies_due",
    Replies: "replies",
    CallerHeartbeat: "caller_news",
    JobControl: "control",
    ModelState: "model",
    ModelKeyState: "model_key",
    Capacity: "capacity",
    ReplicaGrants: "grants",
    Demand: "demand",
    ServiceReport: "service",
    UsageReport: "usage",
    JobEvent: "event",
    DeadLetter: "dead_letter",
    DeadItems: "dead_items",
    BatchAttempt: "attempt",
    Backlog: "backlog",
    WakeRequest: "wake",
    RoleLoad: "role_load",
    AutoscalerEpoch: "autoscaler_epoch",
    PoolScaling: "pool_scaling",
    ScalingOverride: "scaling_override",
    DecisionEntry: "scaling_decision",
}
"""The value of the `kind` header of each record type."""

SCHEMA_VERSIONS: Final[dict[str, int]] = dict.fromkeys(KINDS.values(), 1) | {"close": 2}
"""The newest schema version of each kind that this release can read."""
