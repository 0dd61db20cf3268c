"""Settings of the intake role."""

from typing import ClassVar, Final

from pydantic import Field

from core.settings import Settings

MIB: Final = 1024 * 1024

LINE_BYTES_CEILING: Final = 64 * MIB
"""Largest permitted `line_bytes_max`: files validated under any setting stay readable."""


class IntakeSettings(Settings):
    """Limits and intervals of one intake process."""

    env_prefix: ClassVar[str] = "MILLRACE_INTAKE_"

    job_items_max: int = Field(default=1_000_000, ge=1, le=100_000_000)
    """Requests of one job, in all its files. Default one million. Validation holds 8 bytes of each,
    and 36 more of prompts (see `prefix_order`)."""

    prefix_order: bool = True
    """Whether to emit the items of a job by shared prefixes of their prompts, where that saves a
    tenth of its prompt tokens. Jobs that were validated before keep their order."""

    several_models: bool = True
    """Whether the requests of a job may name several models, or an adapter. Off until every intake
    and results writer is of a release that knows such jobs; those that are accepted keep theirs."""

    line_bytes_max: int = Field(default=1024 * 1024, ge=1024, le=LINE_BYTES_CEILING)
    """Bytes of one line of an input file. Default 1 MiB, twice a very long context."""

    validation_threads: int = Field(default=4, ge=1, le=32)
    """Files validated at once. Files above 8 MiB use a quarter of the threads, all above 256 KiB
    half of them; at least one and two."""

    jobs_held_max: int = Field(default=256, ge=1, le=10_000)
    """Jobs that this process expands at once. First jobs of all tenants come before later ones."""

    lease_ttl_s: float = Field(default=15.0, ge=0.5, le=600)
    """How long after the death of this process another may take over its jobs."""

    window_s: float = Field(default=3.0, gt=0, le=600)
    """Seconds of a pool's throughput that may be outstanding: on the log, or executed without a
    row. Its tenants share them. Longer delays tenants that begin to submit."""

    window_items_max: int = Field(default=1_000_000, ge=100, le=100_000_000)
    """Outstanding items of one pool at most, however fast it is."""

    read_ahead_items: int = Field(default=20_000, ge=100, le=1_000_000)
    """Outstanding items of all pools for each batcher that is alive. Half of what a batcher buffers
    (`MILLRACE_BATCHER_HELD_ITEMS_MAX`), so that it can always read the items of new tenants."""

    read_ahead_bytes: int = Field(default=64 * MIB, ge=MIB, le=64 * 1024 * MIB)
    """The same in bytes of input lines: half of `MILLRACE_BATCHER_HELD_BYTES_MAX`. Default 64 MiB.
    Items above 256 KiB do not count, since the log carries only references to them."""

    stall_limit_s: float = Field(default=60.0, ge=0.1, le=86_400)
    """Silence after which the lost items of a job are looked for and emitted again; it counts from
    the newest replica of the pool, ten times this long at most."""

    retry_interval_s: float = Field(default=0.5, ge=0.01, le=60)
    """Pause between two looks for items whose retry is due."""

    retry_share: float = Field(default=0.1, ge=0, le=1)
    """Retry budget of a pool, as a share of the items per second that it is known to do."""

    retry_items_per_s_min: float = Field(default=10.0, gt=0, le=1_000_000)
    """Retry budget of a pool at least, in items per second; more is delayed, never failed."""

    poll_busy_s: float = Field(default=0.05, ge=0.001, le=10)
    """Pause between two rounds while a job is being expanded."""

    poll_idle_s: float = Field(default=1.0, ge=0.01, le=60)
    """Pause between two rounds when nothing notified us of work."""

    expiry_interval_s: float = Field(default=1.0, ge=0.01, le=60)
    """How late an expired job may be closed."""

    away_s_max: float = Field(default=120.0, ge=1, le=3600)
    """How long Postgres may be away before the role gives up and is restarted."""

    metrics_port: int | None = Field(default=None, ge=1, le=65_535)
    """Where Prometheus finds the metrics; none by default."""

    metrics_host: str = "127.0.0.1"
    """The address that the metrics are served on."""
