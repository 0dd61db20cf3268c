"""Settings of retention, in days or hours; fractions are allowed."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings


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
