"""Settings of the results writer, the finaliser and retention."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings

MIB = 1024 * 1024


class WriterSettings(Settings):
    """Limits of the writer's transactions, retries of items, and waits."""

    env_prefix: ClassVar[str] = "MILLRACE_WRITER_"

    group_items_max: int = Field(default=5000, ge=1, le=100_000)
    """Items per transaction at most. Default 5,000: larger transactions gain nothing measurable."""

    group_bytes_max: int = Field(default=8 * MIB, ge=1024, le=256 * MIB)
    """Record bytes per transaction at most, which bounds the size of bodies."""

    group_wait_s: float = Field(default=0.05, ge=0, le=5)
    """Longest wait for a transaction to fill. Default 50 ms: short against bulk deadlines."""

    fetch_bytes_min: int = Field(default=64 * 1024, ge=1, le=8 * MIB)
    """Bytes that a broker gathers before it answers, so that single calls do not cost a fetch each.
    """

    fetch_wait_s: float = Field(default=0.1, ge=0.001, le=5)
    """Longest wait of a broker for `fetch_bytes_min`. It delays only the end of a job."""

    poll_records_max: int = Field(default=256, ge=1, le=10_000)
    """Records held in memory at most, each of up to 1.1 MB."""

    close_slice_items: int = Field(default=10_000, ge=1, le=10_000)
    """Item indexes that one transaction of a close examines."""

    attempts_max: int = Field(default=3, ge=1, le=100)
    """Executions of an item at most, if its failures are retryable."""

    retry_backoff_s: float = Field(default=5, ge=0, le=3600)
    """Longest wait before the second execution of an item; it doubles with each further one."""

    retry_backoff_s_max: float = Field(default=300, ge=0, le=86_400)
    """Upper bound of that wait; a quarter of the job's remaining time is another."""

    quarantine_s: float = Field(default=3600, ge=0, le=30 * 86_400)
    """How long the bulk jobs of a tenant wait on a pool after one of them exceeded its crash
    budget. Default one hour; 0: not at all. An operator may end it earlier."""

    database_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long a transaction is repeated while Postgres is unavailable before the role ends."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the Prometheus endpoint; None disables it."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""


class FinaliserSettings(Settings):
    """How many jobs are finalised at once, under which lease, and intervals of removals."""

    env_prefix: ClassVar[str] = "MILLRACE_FINALISER_"

    jobs_max: int = Field(default=4, ge=1, le=64)
    """Jobs finalised at once, a thread and a connection each. The last thread is reserved for a
    tenant without a running job."""

    look_interval_s: float = Field(default=1.0, gt=0, le=10)
    """Longest wait between two claims; a notification ends it while a thread is free."""

    lease_s: float = Field(default=30, ge=3, le=3600)
    """Lease time without a heartbeat: how long the job of a dead finaliser waits."""

    database_wait_s: float = Field(default=120, gt=0, le=3600)
    """How long Postgres may be unavailable before the role ends."""

    removal_interval_s: float = Field(default=60, ge=0.1, le=3600)
    """Pause between two removals of expired data and of objects of deleted files."""

    orphan_interval_s: float = Field(default=3600, ge=0.1, le=7 * 86_400)
    """Pause between two sweeps of all objects for orphans that a crash left."""

    orphan_age_s: float = Field(default=86_400, ge=3 * 3600, le=365 * 86_400)
    """Age of orphans at removal, three hours at least: keys of calls live for two. Uploads without
    progress for so long are aborted."""

    stop_grace_s: float = Field(default=20, ge=0, le=600)
    """How long a stop waits for running jobs; then another process takes them."""

    metrics_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the Prometheus endpoint; None disables it."""

    metrics_host: str = "127.0.0.1"
    """Address that the metrics port listens on."""


class RetentionSettings(Settings):
    """How long jobs, their results and the rows of files are kept.

    The retention sweep runs every `MILLRACE_FINALISER_REMOVAL_INTERVAL_S`.
    """

    env_prefix: ClassVar[str] = "MILLRACE_RETENTION_"

    batch_days: float = Field(default=400, gt=0, le=36_500)
    """From the end of a batch to its deletion, with all its data. Default 400 (13 months)."""

    request_days: float = Field(default=30, gt=0, le=36_500)
    """From the arrival of a single request to its removal, if it is terminal. Must be longer than
    `MILLRACE_API_IDEMPOTENCY_KEEP_S`, whose keys may name its answer."""

    file_days: float | None = Field(default=None, gt=0, le=36_500)
    """From the creation of a file without an expiry to its deletion; None keeps it until its owner
    deletes it or its last batch is deleted."""

    zero_retention_hours: float = Field(default=24, gt=0, le=8760)
    """For zero-retention tenants: from the end of a batch to its deletion, during which its owner
    can fetch the results; and from the upload of a file that no batch names. Default 24 h."""

    tombstone_days: float = Field(default=400, gt=0, le=36_500)
    """How long the row of a deleted batch or removed file is kept as a tombstone, empty."""

    turn_rows_max: int = Field(default=50_000, ge=100, le=10_000_000)
    """Item rows that one run removes at most, in transactions of some ten milliseconds."""
