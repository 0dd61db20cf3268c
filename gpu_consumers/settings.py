"""What a replica serves and how much it may hold."""

from typing import ClassVar, Literal

from pydantic import Field

from core.settings import Settings


class ReplicaSettings(Settings):
    """One GPU consumer process: a replica of a pool."""

    env_prefix: ClassVar[str] = "MILLRACE_GPU_"

    pool: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)
    """Names the topics that this replica reads, `batches.<pool>.<class>`."""

    job_class: Literal["both", "bulk", "interactive"] = "both"
    """Classes of the batches that this replica runs, on one engine."""

    batch_items: int = Field(default=100, ge=1, le=1000)
    """Items in a full batch: two of them are always granted. Default 100, as the batcher's."""

    in_flight_batches_max: int = Field(default=200, ge=1, le=10_000)
    """Bulk records above the lowest unfinished one of a partition: bounds what a crash repeats.
    With fewer than 4, which batchers send to one partition in a row, other partitions idle."""

    in_flight_calls_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """The same for online calls: one long stream must not halt those behind it."""

    commit_interval_s: float = Field(default=0.05, ge=0.01, le=60)
    """How often finished offsets are committed. What ended since then runs again after a death, in
    tens; so this is shorter than `MILLRACE_KAFKA_COMMIT_INTERVAL_S`."""

    crashes_max: int = Field(default=3, ge=3, le=100)
    """Executions of an item that may end with its process, the last of them alone; then it fails
    with `item_crashes_engine`. Default, and least, 3: in its batch, in a tenth, alone."""

    engine_reaction_s: float = Field(default=10.0, gt=0, le=600)
    """What an engine may be silent beyond the longest execution of one item; then the process
    ends, as by a crash. Default 10 s."""

    stuck_s_max: float = Field(default=180.0, ge=1, le=3600)
    """How long the event loop of a replica may have no turn, whatever its items take; then the
    process ends, as by a crash. Default 180 s: longer than `MILLRACE_KAFKA_DELIVERY_TIMEOUT_S`,
    for which a full producer may hold the loop while the broker is away."""

    shutdown_grace_s: float = Field(default=8.0, ge=0, le=3600)
    """Time to finish what runs on SIGTERM; the rest is handed back."""

    unavailable_backoff_s_max: float = Field(default=10.0, gt=0, le=300)
    """Longest pause before a pool that was away is tried again with one item."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where Prometheus finds this process; none by default, 0 picks a free port."""
