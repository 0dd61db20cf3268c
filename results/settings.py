"""Settings of the two roles of this room."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings

MIB = 1024 * 1024


class WriterSettings(Settings):
    """How the results writer groups what it reads, and how long it bears a database away."""

    env_prefix: ClassVar[str] = "MILLRACE_WRITER_"

    group_items_max: int = Field(default=5000, ge=1, le=100_000)
    """Items of one transaction at most. Default 5,000: larger ones gain nothing measurable."""

    group_bytes_max: int = Field(default=8 * MIB, ge=1024, le=256 * MIB)
    """Bytes of the records of one transaction at most, so that bodies bound it too."""

    group_wait_s: float = Field(default=0.05, ge=0, le=5)
    """Longest wait for a transaction to fill. Default 50 ms: little beside any bulk deadline."""

    fetch_bytes_min: int = Field(default=64 * 1024, ge=1, le=8 * MIB)
    """What a broker gathers before it answers. Calls that trickle in would each cost a fetch."""

    fetch_wait_s: float = Field(default=0.1, ge=0.001, le=5)
    """Longest wait of a broker for that much. Nobody waits for this role but the end of a job."""

    poll_records_max: int = Field(default=256, ge=1, le=10_000)
    """Records held in memory at most, each of up to 1.1 MB."""

    close_slice_items: int = Field(default=10_000, ge=1, le=10_000)
    """Item indexes that one transaction of a close looks at."""

    attempts_max: int = Field(default=3, ge=1, le=100)
    """Executions of an item in all, while its failures are of a kind that may pass."""

    retry_backoff_s: float = Field(default=5, ge=0, le=3600)
    """Longest wait before the second execution of an item; it doubles with each one."""

    retry_backoff_s_max: float = Field(default=300, ge=0, le=86_400)
    """Bound on the wait before any execution; a quarter of the job's time left is another."""

    database_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long the same transaction is tried again while Postgres is away; then the role ends."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Prometheus reads; without it, nowhere."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""


class FinaliserSettings(Settings):
    """How many jobs are finalised at once, and under which lease."""

    env_prefix: ClassVar[str] = "MILLRACE_FINALISER_"

    jobs_max: int = Field(default=2, ge=1, le=64)
    """Jobs at once, one thread and one database connection each; the last for a tenant without."""

    look_interval_s: float = Field(default=1.0, gt=0, le=10)
    """Longest wait before looking for jobs again; news is sooner while places are free, no stop."""

    lease_s: float = Field(default=30, ge=3, le=3600)
    """Life of a lease without a heartbeat: how long a dead finaliser's job waits."""

    database_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long Postgres may be away before the role ends."""

    removal_interval_s: float = Field(default=60, ge=0.1, le=3600)
    """Pause between two looks for deleted and expired files, whose objects are then removed."""

    orphan_interval_s: float = Field(default=3600, ge=0.1, le=7 * 86_400)
    """Pause between two looks at all objects for those that a crash left behind."""

    orphan_age_s: float = Field(default=86_400, ge=3 * 3600, le=365 * 86_400)
    """How old they must be, three hours at least: keys of calls live for two. An upload that has
    moved nothing for so long is cut."""

    stop_grace_s: float = Field(default=20, ge=0, le=600)
    """How long a stop waits for jobs that are begun; then they are left to another process."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Where Prometheus reads; without it, nowhere."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""
