"""A pool of `millrace up --autoscale`, put to sleep and woken, and when each step was appended.

Times are those of the broker, in seconds since the epoch; clients are on the same host.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.runs import VoidRunError
from cli.admin.operator_connections import kafka_settings
from cli.admin.scaling_records import write_override
from topics.records.catalogue import BACKLOG, CAPACITY, GRANTS, SCALING, Topic, grants_partition
from topics.records.codec import decode_value, kind_of
from topics.records.kinds import KINDS
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, ReplicaGrants
from topics.records.scaling import PoolScaling, ScalingOverride, WakeRequest
from topics.settings import KafkaSettings
from topics.tail_readers.tail_reader_thread import TailReaderThread
from topics.tail_readers.topic_tail_reader import TopicTailReader

SLEEP_S_MAX: Final = 120.0
"""Time in which a pool goes to zero, and its warm pool is loaded again."""

IDLE_S: Final = 2.0
"""`idle_s` of the policy: an order of an operator ends its wait, but its calls keep a need."""

_POLL_S: Final = 0.05
_FRESH_S: Final = 1.5  # a replica publishes its state each second
_SETTLED_S: Final = 2.0  # for the api and the autoscaler to read the same records, and to decide
_CLASS: Final = "interactive"


def policy_text(pool: str, *, warm_replicas: int) -> str:
    """Return the policy file of a pool that sleeps when it is told to."""
    return (
        f'[pools."{pool}"]\nreplicas_min = 0\nreplicas_max = 2\n'
        f"warm_replicas = {warm_replicas}\nidle_s = {IDLE_S}\n"
    )


@dataclass(slots=True)
class WakeTimes:
    """When the first record of each kind after `began_s` was appended; 0 before."""

    began_s: float
    request_s: float = 0.0  # of the api: the pool has a call
    order_s: float = 0.0  # of the autoscaler: a replica is to start or to join
    credit_s: float = 0.0  # of a replica: it accepts calls


@dataclass(slots=True)
class PoolWatch:
    """What the topics say of one pool; written by threads of readers."""

    pool: str
    decided: PoolScaling | None = None
    times: WakeTimes = field(default_factory=lambda: WakeTimes(float("inf")))
    _replicas: dict[str, tuple[Capacity, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def apply(self, records: list[ReceivedRecord]) -> None:
        """Apply records of any of the topics."""
        with self._lock:
            for one in records:
                if one.value is not None:
                    self._apply(one, one.value, one.appended_ms / 1000)

    def is_asleep(self, standby: int, since_s: float) -> bool:
        """Whether only `standby` replicas exist, which sleep, and no operator keeps them there."""
        now_s = time.time()
        with self._lock:
            record = self.decided
            current = [one for one, at_s in self._replicas.values() if now_s - at_s < _FRESH_S]
            return (
                record is not None
                and record.at_s >= since_s
                and (record.target, record.awake, record.removals) == (0, [], [])
                and [one.lifecycle for one in current] == ["asleep"] * standby
            )

    def begin(self) -> WakeTimes:
        """Return the times of a wake that begins now."""
        with self._lock:
            self.times = WakeTimes(time.time())
            return self.times

    def _apply(self, one: ReceivedRecord, value: bytes, at_s: float) -> None:
        kind, times = kind_of(one.headers), self.times
        is_new = at_s >= times.began_s - 0.001  # the broker's times are whole milliseconds
        if kind == KINDS[PoolScaling]:
            decided = decode_value(PoolScaling, value)
            if decided.pool == self.pool:
                self.decided = decided
                times.order_s = times.order_s or at_s * (is_new and decided.target > 0)
        elif kind == KINDS[Capacity]:
            replica = decode_value(Capacity, value)
            if (replica.pool, replica.job_class) == (self.pool, _CLASS):
                self._replicas[replica.replica_id] = replica, time.time()
        elif kind == KINDS[ReplicaGrants]:
            grants = decode_value(ReplicaGrants, value)
            if grants.pool == self.pool and grants.available and grants.job_class == _CLASS:
                times.credit_s = times.credit_s or at_s * is_new
        elif kind == KINDS[WakeRequest]:
            request = decode_value(WakeRequest, value)
            if request.pool == self.pool:
                times.request_s = times.request_s or at_s * is_new


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """A pool of a running stack with an autoscaler."""

    kafka: KafkaSettings
    watch: PoolWatch
    standby: int  # replicas of the warm pool

    def put_to_sleep(self) -> None:
        """Remove the replicas of the group, and wait until the policy decides again.

        Raises VoidRunError after `SLEEP_S_MAX`.
        """
        pool = self.watch.pool
        time.sleep(IDLE_S)
        ordered_s = time.time()
        write_override(self.kafka, ScalingOverride(pool=pool, mode="set", at_s=ordered_s))
        self._wait(ordered_s)
        write_override(self.kafka, ScalingOverride(pool=pool, mode="", at_s=time.time()))
        time.sleep(_SETTLED_S)
        self._wait(ordered_s)

    def _wait(self, since_s: float) -> None:
        deadline_s = time.monotonic() + SLEEP_S_MAX
        while not self.watch.is_asleep(self.standby, since_s):
            if time.monotonic() > deadline_s:
                raise VoidRunError(f"the pool does not sleep after {SLEEP_S_MAX:g} s")
            time.sleep(_POLL_S)


@contextmanager
def watched_pool(data: Path, pool: str, *, standby: int) -> Iterator[ScaledPool]:
    """Read the topics of the stack on `data` during the block."""
    kafka, watch = kafka_settings(data), PoolWatch(pool)
    readers = [_reader(kafka, topic, watch) for topic in (SCALING, CAPACITY, BACKLOG, GRANTS)]
    for reader in readers:
        reader.start_at_end()
    try:
        yield ScaledPool(kafka, watch, standby)
    finally:
        for reader in readers:
            reader.request_stop()
        for reader in readers:
            reader.stop()


def _reader(kafka: KafkaSettings, topic: Topic, watch: PoolWatch) -> TailReaderThread:
    partitions = [grants_partition(_CLASS)] if topic is GRANTS else None
    reader = TopicTailReader(
        kafka, topic, client_id=f"wake-{topic.name}", partitions=partitions, reset_to_earliest=False
    )
    return TailReaderThread(reader, watch.apply, name=f"wake-{topic.name}")
