"""Readers of what replicas publish, without Faust, so that backpressure does not delay them.

Replicas repeat their state, so each reader begins at the present end of its topic.
"""

from collections.abc import Callable
from typing import Final

from batcher.outbound.record_reader import RecordReader
from topics.records.catalogue import CAPACITY, GRANTS, grants_partition
from topics.records.records import Capacity, ReplicaGrants
from topics.settings import KafkaSettings

CAPACITY_INTERVAL_S: Final = 0.05
"""Time for which capacity is collected: it carries rates, and grants of earlier releases."""

GRANTS_INTERVAL_S: Final = {"bulk": 0.01, "interactive": 0.002}
"""Time for which grants are collected, by class: online calls wait for them."""


def replica_and_class(state: Capacity | ReplicaGrants) -> tuple[str, str]:
    """Return what a newer record of a replica replaces."""
    return state.replica_id, state.job_class


def capacity_reader(
    settings: KafkaSettings,
    *,
    client_id: str,
    on_capacity: Callable[[list[Capacity]], None],
    on_failure: Callable[[Exception], None],
) -> RecordReader[Capacity]:
    """Return a reader of the capacity of replicas. Both callbacks run in its thread."""
    return RecordReader(
        settings,
        CAPACITY,
        Capacity,
        client_id=client_id,
        on_records=on_capacity,
        on_failure=on_failure,
        newest_of=replica_and_class,
        poll_interval_s=CAPACITY_INTERVAL_S,
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
        newest_of=replica_and_class,
        partitions=[grants_partition(job_class)],
        poll_interval_s=GRANTS_INTERVAL_S[job_class],
    )
