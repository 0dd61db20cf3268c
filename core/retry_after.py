"""How long a server asks to be left alone: the Retry-After field of RFC 9110, 10.2.3."""

from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after_s(text: str | None, now_s: float, *, s_max: float) -> float | None:
    """Return the seconds that a Retry-After names, `s_max` at most; None when it says nothing.

    `now_s` is in seconds since the epoch: a server may name a date.
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
