"""Readers of what replicas publish, without Faust, so that backpressure does not delay them.

Replicas repeat their state, so each reader begins at the present end of its topic.
"""

import time
from collections.abc import Callable
from typing import Final

from batcher.outbound.record_reader import RecordReader
from topics.records.catalogue import CAPACITY, GRANTS, JOB_CLASSES, grants_partition
from topics.records.records import Capacity, ReplicaGrants
from topics.settings import KafkaSettings

CAPACITY_INTERVAL_S: Final = {"bulk": 0.2, "interactive": 0.05}
"""Time for which capacity is collected, by class: it carries rates, once a second, and grants of
earlier releases, for which online calls wait."""

GRANTS_INTERVAL_S: Final = {"bulk": 0.02, "interactive": 0.002}
"""Time for which grants are collected, by class: online calls wait for them."""


OTHER_CLASS_S: Final = 10.0
"""Interval at which the capacity of a replica is read for the other class: it carries measured
times of tokens, which change slowly."""

_OTHERS_MAX: Final = 10_000


class CapacityFilter:
    """Whether a record of `capacity` is decoded, by its key: POOL:REPLICA:CLASS.

    Every record of this class is, and of the other class one of a replica in `OTHER_CLASS_S`.
    """

    def __init__(self, job_class: str, monotonic_s: Callable[[], float]) -> None:
        """Remember no replica yet."""
        self._others = tuple(f":{one}".encode() for one in JOB_CLASSES if one != job_class)
        self._monotonic_s = monotonic_s
        self._read_s: dict[bytes, float] = {}

    def is_relevant(self, key: bytes) -> bool:
        """Return whether the record is decoded."""
        if not key.endswith(self._others):
            return True
        now_s = self._monotonic_s()
        if now_s - self._read_s.get(key, float("-inf")) < OTHER_CLASS_S:
            return False
        if len(self._read_s) >= _OTHERS_MAX:  # replicas that ended are among them
            self._read_s.clear()
        self._read_s[key] = now_s
        return True


def capacity_reader(
    settings: KafkaSettings,
    job_class: str,
    *,
    client_id: str,
    on_capacity: Callable[[list[Capacity]], None],
    on_failure: Callable[[Exception], None],
    monotonic_s: Callable[[], float] = time.monotonic,
) -> RecordReader[Capacity]:
    """Return a reader of the capacity of replicas for a class. Both callbacks run in its thread."""
    return RecordReader(
        settings,
        CAPACITY,
        Capacity,
        client_id=client_id,
        on_records=on_capacity,
        on_failure=on_failure,
        is_newest_enough=True,
        is_relevant=CapacityFilter(job_class, monotonic_s).is_relevant,
        poll_interval_s=CAPACITY_INTERVAL_S[job_class],
    )


def grant_reader(
    settings: KafkaSettings,
    job_class: str,
    *,
    client_id: str,
    on_grants: Callable[[list[ReplicaGrants]], None],
    on_failure: Callable[[Exception], None],
) -> RecordReader[ReplicaGrants]:
    """Return a reader of the grants to batchers of a class. Both callbacks run in its thread."""
    return RecordReader(
        settings,
        GRANTS,
        ReplicaGrants,
        client_id=client_id,
        on_records=on_grants,
        on_failure=on_failure,
        is_newest_enough=True,
        partitions=[grants_partition(job_class)],
        poll_interval_s=GRANTS_INTERVAL_S[job_class],
    )
