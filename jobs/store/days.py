"""The day of a job; it selects the partition of `items` that holds the job's rows."""

from datetime import UTC, date, datetime

_EPOCH = date(1970, 1, 1)


def job_day(created_at: datetime) -> int:
    """Return the days from 1970-01-01 to the creation of the job, in UTC."""
    return (created_at.astimezone(UTC).date() - _EPOCH).days
