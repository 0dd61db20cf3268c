"""Reads the times that options take: ISO 8601, or an offset from now such as `-2h`. Pure."""

import math
import re
from datetime import UTC, datetime
from typing import Final

from cli.exits import CommandError, ExitCode

_OFFSET: Final = re.compile(r"(?P<sign>[+-])(?P<number>\d{1,9})(?P<unit>[smhd])", re.ASCII)
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class InvalidInstantError(CommandError):
    """A time is ISO 8601, as `2026-11-27T10:00Z`, or an offset from now, as `-2h` or `+30m`."""

    exit_code = ExitCode.USAGE


def parse_instant(text: str, now_s: float) -> float:
    """Return Unix seconds. A time without a UTC offset is UTC. Raises InvalidInstantError."""
    found = _OFFSET.fullmatch(text.strip())
    if found is not None:
        seconds = int(found["number"]) * _UNIT_S[found["unit"]]
        at_s = now_s + (seconds if found["sign"] == "+" else -seconds)
        return max(0.0, at_s)
    try:
        moment = datetime.fromisoformat(text.strip())
        at_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidInstantError from None
    if not (math.isfinite(at_s) and at_s >= 0):
        raise InvalidInstantError
    return at_s


def instant_text(at_s: float) -> str:
    """Return a time to the second, in UTC; `-` for one that no calendar has."""
    try:
        return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return "-"
