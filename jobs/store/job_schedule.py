"""When items of a job may be emitted: not before a time, in its hours and those of its tenant.

Pure. A job that waits is in progress and has its items; its completion window continues.
"""

import logging
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
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

    opens_s: float  # 0: now; inf: not within 35 days, which is beyond each deadline
    recheck_s: float  # the answer holds until then; inf only for an open job without hours


_ALWAYS_OPEN: Final = Opening(0.0, math.inf)

_RECHECK_S: Final = 86_400.0
"""How long a job counts as closed whose hours are not known to open."""


def job_opening(now_s: float, not_before_s: float, hours: Iterable[str | None]) -> Opening:
    """Return when items may be emitted; `hours` are texts of bulk hours, and all must be open.

    Hours that this host cannot read, such as those of a time zone that it lacks, count as closed.
    """
    texts = [text for text in hours if text]
    if not texts and not_before_s <= now_s:
        return _ALWAYS_OPEN
    given = [_parsed(text) for text in texts]
    known = [one for one in given if one is not None]
    is_readable = len(known) == len(given)
    opens_s = next_opening(max(now_s, not_before_s), known) if is_readable else math.inf
    if opens_s > now_s:
        return Opening(opens_s, min(opens_s, now_s + _RECHECK_S))
    return Opening(0.0, next_closing(now_s, known))


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
        opens = (
            "are not open at the same time within 35 days"
            if opens_s == math.inf
            else f"open next at {_text(datetime.fromtimestamp(opens_s, UTC))}"
        )
        raise InvalidFieldError(
            f"No item may run before the deadline, {_text(expires_at)}: the bulk hours of the batch"
            f" and its tenant {opens}.",
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


@lru_cache(maxsize=10_000)  # also of texts that cannot be read, so that each is logged once
def _parsed(text: str) -> BulkHours | None:
    try:
        return parse_bulk_hours(text)
    except InvalidBulkHoursError:
        _LOG.exception("bulk hours cannot be read on this host: jobs with them wait")
        return None


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
