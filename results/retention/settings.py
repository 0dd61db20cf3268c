"""Settings of retention."""

from typing import ClassVar

from pydantic import Field

from core.settings import Settings


class RetentionSettings(Settings):
    """How long jobs, their results and the rows of files are kept. Days may have fractions.

    The sweep has a turn each `MILLRACE_FINALISER_REMOVAL_INTERVAL_S`.
    """

    env_prefix: ClassVar[str] = "MILLRACE_RETENTION_"

    batch_days: float = Field(default=400, gt=0, le=36_500)
    """From the end of a batch to its deletion, with everything that it has. Default 400: a year
    and a month to look back."""

    request_days: float = Field(default=30, gt=0, le=36_500)
    """From the arrival of a single request to its removal, once it has ended. Longer than
    `MILLRACE_API_IDEMPOTENCY_KEEP_S`, whose keys may name its answer."""

    file_days: float | None = Field(default=None, gt=0, le=36_500)
    """From the creation of a file whose owner named no end to its deletion; without it, such a
    file lives until its owner or its last batch goes."""

    zero_retention_hours: float = Field(default=24, gt=0, le=8760)
    """From the end of a batch of a tenant that retains nothing to its deletion, so long may its
    owner fetch the results; and from the upload of a file that no batch names. Default 24 h."""

    tombstone_days: float = Field(default=400, gt=0, le=36_500)
    """How long the row of a deleted batch and of a removed file stays, without any content."""

    turn_rows_max: int = Field(default=50_000, ge=100, le=10_000_000)
    """Item rows that one turn removes at most, in transactions of some ten milliseconds."""
