"""Builds the records by which replicas publish their capacity."""

from collections.abc import Sequence
from uuid import UUID

from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, LoadedModel, OutputMean, ReplicaGrants


def capacity_record(
    replica: str = "r1",
    items_per_s: float = 100.0,
    *,
    pool: str = "pool-small",
    job_class: str = "bulk",
    available: bool = True,
    epoch: int = 1,
    granted: dict[str, int] | None = None,
    in_flight_jobs: list[UUID] | None = None,
    output_means: list[OutputMean] | None = None,
    models: Sequence[LoadedModel] = (),
) -> ReceivedRecord:
    """Return the record of a replica that runs four items at once."""
    capacity = Capacity(
        replica,
        epoch,
        pool,
        job_class,
        [0],
        granted or {},
        items_per_s,
        4,
        available,
        in_flight_jobs=in_flight_jobs,
        output_means=output_means,
        models=[*models],
    )
    key = f"{replica}:{job_class}".encode()
    return ReceivedRecord("capacity", 0, 0, key, kind_headers(Capacity), encode(capacity), 0)


def grants_of(
    capacity: Capacity, granted: dict[str, int], versions: Sequence[str] = (), adapters_max: int = 0
) -> ReplicaGrants:
    """Return the grants that a replica in this state publishes."""
    return ReplicaGrants(
        capacity.replica_id,
        capacity.epoch,
        capacity.pool,
        capacity.job_class,
        capacity.partitions,
        granted,
        capacity.concurrency,
        versions=[*versions],
        adapters_max=adapters_max,
    )
