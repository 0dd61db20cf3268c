"""Settings of a GPU consumer process and of the machine that it runs on."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator

from core.settings import Settings
from gpu_consumers.spot.spot_notice import check_notice_url

_NAME_PATTERN = r"^([a-z0-9][a-z0-9._-]{0,62})?$"


class ReplicaSettings(Settings):
    """Settings of one replica of a pool."""

    env_prefix: ClassVar[str] = "MILLRACE_GPU_"

    pool: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)
    """The pool; this replica reads the topics `batches.<pool>.<class>`."""

    replica_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]+$", max_length=200)
    """The id of this process, if the platform has one for it: `millrace up --autoscale` then knows
    which of its children an autoscaler means. It must be new for each process. None: a random one.
    """

    job_class: Literal["both", "bulk", "interactive"] = "both"
    """The job classes that this replica runs, on one engine."""

    batch_items: int = Field(default=100, ge=1, le=1000)
    """Items in a full batch; two such batches are always granted. Default 100, as the batcher's."""

    in_flight_batches_max: int = Field(default=200, ge=1, le=10_000)
    """Bulk records above the lowest unfinished one of a partition; limits what a crash repeats.
    Batchers send 4 records in a row to one partition: with fewer, other partitions idle."""

    in_flight_calls_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """The same for online calls; a long stream must not stop the calls behind it."""

    commit_interval_s: float = Field(default=0.05, ge=0.01, le=60)
    """Interval of offset commits. After a crash, batches finished since the last commit run again
    in quarantine, so this is shorter than `MILLRACE_KAFKA_COMMIT_INTERVAL_S`."""

    crashes_max: int = Field(default=3, ge=3, le=100)
    """Crashes after which an item fails with `item_crashes_engine`, if it ran alone in the last.
    Default and minimum 3: in its batch, in a tenth of it, alone."""

    engine_reaction_s: float = Field(default=10.0, gt=0, le=600)
    """How long an engine may end no item, beyond the time limit of one item; then the process
    ends as in a crash. Default 10 s."""

    stuck_s_max: float = Field(default=180.0, ge=1, le=3600)
    """How long the event loop may be blocked; then the process ends as in a crash. Default 180 s:
    more than `MILLRACE_KAFKA_DELIVERY_TIMEOUT_S`, for which a full producer may block the loop
    while the broker is unavailable."""

    shutdown_grace_s: float = Field(default=8.0, ge=0, le=3600)
    """Time to finish running items on SIGTERM; the rest is requeued."""

    type: str = Field(default="", pattern=_NAME_PATTERN)
    """Type of the GPU, as the scaling policy names it. Default: not known."""

    zone: str = Field(default="", pattern=_NAME_PATTERN)
    """Zone of the GPU, as the scaling policy names it. Default: not known."""

    spot: bool = False
    """Whether the GPU is spot capacity, which may be taken away. Default: no."""

    standby: bool = False
    """Load and warm the model, but join no group until the autoscaler orders it, or until none has
    scaled the pool for 15 s. Default: no."""

    notice_file: Path | None = None
    """A file that appears when the GPU is about to be taken away; it may hold the time (ISO 8601).
    The replica then drains. Default: none."""

    notice_url: str | None = None
    """The same as a URL of plain HTTP on a loopback or link-local address, asked each second: an
    answer 200 is the notice. Default: none."""

    unavailable_backoff_s_max: float = Field(default=10.0, gt=0, le=300)
    """Longest pause before an unavailable pool is probed with one item."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of the metrics endpoint; none by default, 0 picks a free port."""

    @field_validator("notice_url")
    @classmethod
    def _check_notice_url(cls, value: str | None) -> str | None:
        if value is not None:
            check_notice_url(value)
        return value


class HostSettings(Settings):
    """The machine of a replica."""

    env_prefix: ClassVar[str] = "MILLRACE_HOST_"

    id: str | None = Field(default=None, min_length=1, max_length=100)
    """Name of the machine, not of a pod or container: an item is charged with crashes on two of
    them. None: derived from the machine's own id."""
