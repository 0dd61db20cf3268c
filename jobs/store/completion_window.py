"""Completion windows in the notation of clients: `24h`, `90s`, `7d`."""

import re
from typing import Final

from topics.records.catalogue import COMPLETION_WINDOW_DAYS_MAX

WINDOW_S_MIN: Final = 30
WINDOW_S_MAX: Final = COMPLETION_WINDOW_DAYS_MAX * 24 * 3600

_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,7})([smhd])")


def window_seconds(text: str) -> int | None:
    """Return the window in seconds, or None if it is malformed or out of range."""
    parts = _WINDOW.fullmatch(text)
    if parts is None:
        return None
    seconds = int(parts[1]) * _UNIT_S[parts[2]]
    return seconds if WINDOW_S_MIN <= seconds <= WINDOW_S_MAX else None
