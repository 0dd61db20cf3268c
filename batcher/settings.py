"""Settings of one batcher process."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from batcher.policy.batch_closing import BatchLimits
from core.settings import Settings
from topics.records.catalogue import REQUESTS

FILL_RATIO_MAX = 0.2
"""Partitions × records per poll, relative to the stream buffer. Above it Faust's fetch loop can
block in `put()` for ever under backpressure; measured, not documented."""

MIB = 1024 * 1024


class BatcherSettings(Settings):
    """One batcher process: one Faust app for one job class."""

    env_prefix: ClassVar[str] = "MILLRACE_BATCHER_"

    job_class: Literal["bulk", "interactive"] = "bulk"
    """The class of requests that this process reads; classes never share a process."""

    batch_items_max: int = Field(default=100, ge=1, le=1000)
    """Items of a batch. Default 100, a full chunk: not splitting chunks is cheapest."""

    batch_tokens_max: int = Field(default=262_144, ge=1)
    """Estimated tokens of a batch, prompt plus requested output; a larger item is sent alone."""

    batch_s_max: float = Field(default=2.5, gt=0, le=3600)
    """A bulk batch in seconds of its replica's measured throughput: bounds what a crash repeats."""

    wait_ms_max: float | None = Field(default=None, ge=0, le=60_000)
    """Longest wait for a fuller batch while the engine is busy. Default 20 for bulk, else 0."""

    slack_s_min: float = Field(default=5.0, ge=0, le=3600)
    """Margin between the estimated end of a batch and its earliest deadline; with less the batch
    closes at once."""

    silence_s_max: float = Field(default=3.0, gt=0, le=60)
    """Silence of a replica that voids its grants; it repeats them every 0.2 s, 1 s if idle."""

    hold_limit_s: float = Field(default=30.0, gt=0, le=3600)
    """Age from which a record that pins an offset or crowds others out is requeued."""

    held_items_max: int = Field(default=40_000, ge=1)
    """Buffered items, twice what intake makes outstanding for a batcher. Pools and tenants share
    them by quotas; records above the quota of their tenant are deferred."""

    held_bytes_max: int = Field(default=128 * MIB, ge=MIB)
    """Buffered bytes, shared in the same way."""

    deferred_records_max: int = Field(default=0, ge=0, le=1_000_000)
    """bulk: records that may be deferred, about 2 KiB each; then reading stops. A deferred record
    is read again when its tenant has less than its quota. 0: no quotas; reading stops when the
    buffer is full."""

    in_flight_bytes_max: int = Field(default=16 * MIB, ge=2 * MIB, le=48 * MIB)
    """Unacknowledged bytes; below the capacity of the producer's queue, which blocks when full."""

    poll_records: int = Field(default=25, ge=1, le=1000)
    """Records of one poll: small values cost throughput, large ones need a larger buffer."""

    buffer_records: int = Field(default=2048, ge=16, le=65_536)
    """Records that Faust may buffer, of up to 256 KiB each; intake's windows keep it far lower."""

    fetch_gap_ms: float = Field(default=1.0, ge=0, le=1000)
    """interactive: pause between a fetch response with records and the next request. Default 1:
    single records are not delayed, and under load many share the cost of a round trip."""

    start_timeout_s: float = Field(default=60.0, gt=0, le=600)
    """Time to reach the broker, and again until the first assignment."""

    stop_timeout_s: float = Field(default=10.0, gt=0, le=600)
    """Time to wait for acknowledgements and leave the group on SIGTERM."""

    stall_limit_s: float = Field(default=60.0, ge=5, le=3600)
    """Time without progress, though work is possible, after which the process exits."""

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Where Prometheus scrapes this process. Default none; 0 picks a free port."""

    @property
    def wait_s_max(self) -> float:
        """`wait_ms_max` in seconds, or its default for the class."""
        if self.wait_ms_max is not None:
            return self.wait_ms_max / 1000
        return 0.02 if self.job_class == "bulk" else 0.0

    @property
    def batch_limits(self) -> BatchLimits:
        """The limits of the dispatcher."""
        return BatchLimits(
            item_count_max=self.batch_items_max,
            token_count_max=self.batch_tokens_max,
            run_s_max=self.batch_s_max,
            wait_s_max=self.wait_s_max,
            slack_s_min=self.slack_s_min,
        )

    @model_validator(mode="after")
    def _check_buffer(self) -> Self:
        polled = REQUESTS[self.job_class].partition_count * self.poll_records
        if polled > FILL_RATIO_MAX * self.buffer_records:
            raise ValueError("partitions * poll_records must be <= 0.2 * buffer_records")
        return self
