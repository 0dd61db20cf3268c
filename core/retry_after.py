"""Parses the Retry-After header (RFC 9110, 10.2.3)."""

from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(text: str | None, now_s: float, *, s_max: float) -> float | None:
    """Return the delay of a Retry-After value, at most `s_max`; None when it is missing or invalid.

    `now_s`, seconds since the epoch, is for values that are dates.
    """
    if not text:
        return None
    if text.isascii() and text.isdigit():
        return min(float(text[:10]), s_max)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return min(max(0.0, aware.timestamp() - now_s), s_max)
