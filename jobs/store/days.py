"""The day of a job: names the partition of `items` that holds its rows."""

from datetime import UTC, date, datetime

_EPOCH = date(1970, 1, 1)


def job_day(created_at: datetime) -> int:
    """Return the days since 1970-01-01, in UTC, of a job's creation by the database's time."""
    return (created_at.astimezone(UTC).date() - _EPOCH).days
