"""When items of a job may be emitted: not before a time, in its hours and those of its tenant.

Pure. A job that waits is in progress and has its items; its completion window continues.
"""

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple

from core.bulk_hours import (
    BulkHours,
    InvalidBulkHoursError,
    next_closing,
    next_opening,
    parse_bulk_hours,
)
from jobs.errors import InvalidFieldError

_LOG: Final = logging.getLogger(__name__)


class Opening(NamedTuple):
    """Whether items of a job may be emitted. Times are seconds since the epoch."""

    opens_s: float  # 0: now; inf: never
    recheck_s: float  # the answer holds until then


_ALWAYS_OPEN: Final = Opening(0.0, math.inf)


def job_opening(now_s: float, not_before_s: float, hours: Iterable[str | None]) -> Opening:
    """Return when items may be emitted; `hours` are texts of bulk hours, and all must be open.

    Hours that this host cannot read, such as those of a time zone that it lacks, are ignored.
    """
    given = [parsed for text in hours if text and (parsed := _parsed(text))]
    if not given and not_before_s <= now_s:
        return _ALWAYS_OPEN
    opens_s = next_opening(max(now_s, not_before_s), given)
    if opens_s > now_s:
        return Opening(opens_s, opens_s)
    return Opening(0.0, next_closing(now_s, given))


def check_schedule(
    *,
    now: datetime,
    expires_at: datetime,
    not_before: datetime | None,
    bulk_hours: str | None,
    tenant_hours: str | None,
) -> None:
    """Raise InvalidFieldError if no item could be emitted before the deadline."""
    if not_before is not None and not_before >= expires_at:
        raise InvalidFieldError(
            f"It must be before the deadline, {_text(expires_at)}.", param="not_before"
        )
    first_s = max(now, not_before or now).timestamp()
    opens_s = job_opening(first_s, 0.0, (bulk_hours, tenant_hours)).opens_s
    if opens_s >= expires_at.timestamp():
        opens = "never" if opens_s == math.inf else _text(datetime.fromtimestamp(opens_s, UTC))
        raise InvalidFieldError(
            f"No item may run before the deadline, {_text(expires_at)}: the bulk hours of the batch"
            f" and its tenant open next at {opens}.",
            param="bulk_hours" if bulk_hours else "completion_window",
        )


def checked_hours(text: str | None) -> str | None:
    """Return the text of a job's hours, None for none. Raises InvalidFieldError."""
    if not text:
        return None
    try:
        parse_bulk_hours(text)
    except InvalidBulkHoursError as error:
        raise InvalidFieldError(str(error), param="bulk_hours") from None
    return text


def checked_not_before(seconds: int | None) -> datetime | None:
    """Return the time, None for none or 0. Raises InvalidFieldError."""
    if not seconds:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidFieldError("Give seconds since the epoch.", param="not_before") from None


def _parsed(text: str) -> BulkHours | None:
    try:
        return parse_bulk_hours(text)
    except InvalidBulkHoursError:
        _LOG.exception("bulk hours cannot be read on this host")
        return None


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
