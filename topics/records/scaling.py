"""Records of scaling: what the autoscaler reads beside demand and capacity, and what it decides.

Tokens are estimates of prompt tokens and of expected output tokens, apart: readers weight them.
Times are seconds since the epoch. Every record is absolute and repeated: a lost one costs a second.
No record holds a prompt, the name of a tenant or the id of a job.
"""

from typing import Final

from topics.records.records import Record

OVERRIDE_KEY: Final = "override:"
"""Beginning of the keys of overrides; the pool follows."""

BACKLOG_BUCKETS_MAX: Final = 64
"""Buckets of a pool in one record: octaves of the time to the deadline, by endpoint."""


class BacklogBucket(Record, frozen=True):
    """Bulk work of one pool that is due in the same octave of seconds, for one endpoint."""

    deadline_s: float  # the earliest of the bucket, by the database's time
    endpoint: str
    items: int
    prompt_tokens: float
    output_tokens: float  # expected


class Backlog(Record, frozen=True):
    """The bulk work of a pool that has no result yet (`backlog`, keyed by intake process and pool).

    It covers the whole installation as of one snapshot of the database, whichever process leases a
    job. Readers use the record with the newest `at_s` and never add records of several processes,
    so that a takeover of leases counts nothing twice.
    """

    intake_id: str
    pool: str
    at_s: float  # of the snapshot, by the database's time
    epoch: int  # the highest epoch of the leases of the pool's jobs in the snapshot
    buckets: list[BacklogBucket]  # of jobs that may run now; at most `BACKLOG_BUCKETS_MAX`
    paused: list[BacklogBucket] = []  # of jobs that are paused, in quarantine or wait for hours
    validating: int = 0  # jobs whose files are read: their items are not known yet
    validating_bytes: int = 0  # of their files, not read yet
    next_deadline_s: float = 0.0  # earliest of jobs that may run before their own; 0: none


class WakeRequest(Record, frozen=True):
    """Work that is about to reach a pool (`backlog`, keyed by api process and pool).

    The api repeats it each second while an upload runs, and sends it once for a call.
    """

    api_id: str
    pool: str
    at_s: float
    uploads: int = 0  # files that are uploaded now and whose first line names a model of the pool
    calls: int = 0  # 1: there were some since the last record, whether they wait or were refused


class RoleLoad(Record, frozen=True):
    """How busy a process of the control plane is (`backlog`, keyed by role and process)."""

    role: str
    process_id: str
    at_s: float
    work_per_s: float  # requests, bytes or items, see `docs/autoscaling.md`
    waiting: float = 0.0  # of the same unit; of intake, that of the whole installation
    busy: float = 0.0  # part of a core that the process used, 0 to 1
    loop_lag_s: float = 0.0  # how late the event loop runs callbacks, p95 of the last second


class ReplicaKind(Record, frozen=True):
    """How many replicas of one kind a pool is to have."""

    gpu_type: str
    zone: str
    spot: bool
    replicas: int


class AutoscalerEpoch(Record, frozen=True):
    """The autoscaler that decides (`scaling`, under the key `epoch`)."""

    epoch: int  # grows with each owner
    owner_id: str
    at_s: float


class PoolScaling(Record, frozen=True):
    """What an autoscaler decided for a pool and has to remember (`scaling`, keyed by pool).

    Written on each change and every 5 s. Without a record of the last 15 s nobody scales the pool.
    """

    pool: str
    epoch: int
    sequence: int  # grows with each order of the epoch
    at_s: float
    mode: str  # `active`, `observe` or `paused`
    actuator: str
    target: int
    kinds: list[ReplicaKind]  # replicas that are to exist, those of the warm pool included
    removals: list[str]  # replicas that go, by id
    awake: list[str]  # replicas of the warm pool that join their group now, by id
    standby: int  # replicas of the warm pool that stay out of the group
    start_s: float  # p95 of a start: from the order to the first credit
    wake_s: float  # p95 of a wake: from the order to the first credit of a replica in standby
    waking_since_s: float = 0.0  # when the oldest replica that starts was ordered; 0: none starts
    decision: bytes = b""  # JSON of `ScalingDecision`
    memory: bytes = b""  # JSON of what the next owner goes on with
    asleep: int = 0  # replicas that sleep in the warm pool now
    failure: str = ""  # code of the actuator's last failure; empty: none


class ScalingOverride(Record, frozen=True):
    """What an operator ordered for a pool (`scaling`, keyed by `override:` and pool)."""

    pool: str
    mode: str  # `paused` or `set`; empty: the policy decides again
    replicas: int = 0  # of `set`: within the bounds of the policy
    until_s: float = 0.0  # 0: until it is changed
    by: str = ""
    reason: str = ""
    at_s: float = 0.0

    def is_in_force(self, now_s: float) -> bool:
        """Return whether the order holds now."""
        return bool(self.mode) and (self.until_s == 0 or now_s < self.until_s)


class DecisionEntry(Record, frozen=True):
    """One decision of the history (`scaling_decisions`, keyed by pool)."""

    pool: str
    epoch: int
    at_s: float
    applied: bool  # False: the mode is `observe`
    decision: bytes  # JSON of `ScalingDecision`
    failure: str = ""  # code of the actuator's error
