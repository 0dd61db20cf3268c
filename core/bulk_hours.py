"""Bulk hours: the weekly hours of a time zone in which items of bulk jobs may be emitted. Pure.

A window is given in local time, as `22:00-06:00 Europe/Berlin`. Of a local time that occurs twice,
when clocks go back, it is the first; one that does not occur, when they go forward, has the UTC
offset from before the change (RFC 5545, 3.3.5). So windows that meet in local time meet in fact.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

BULK_HOURS_CHARS_MAX: Final = 200
"""Longest text of bulk hours."""

_WINDOWS_MAX: Final = 7
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW: Final = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?\s+)?"
    r"(?P<start>[0-2]\d:[0-5]\d)-(?P<end>[0-2]\d:[0-5]\d)",
    re.ASCII | re.IGNORECASE,
)
_MINUTES_OF_DAY: Final = 24 * 60
_SEARCH_S: Final = 9 * 86_400.0  # every window starts once a week; a change of clocks moves it


class InvalidBulkHoursError(ValueError):
    """Hours are windows such as `22:00-06:00` or `Sat-Sun 00:00-24:00`, and a time zone."""


@dataclass(frozen=True, slots=True)
class _Window:
    days: frozenset[int]  # on which it starts, Monday is 0
    start_min: int  # after midnight, local time
    end_min: int  # after the midnight on which it starts; above 24 h: on the next day


@dataclass(frozen=True, slots=True)
class BulkHours:
    """Windows of a week in a time zone."""

    windows: tuple[_Window, ...]
    zone: ZoneInfo

    def open_until(self, at_s: float) -> float | None:
        """Return the end of a window that contains `at_s`, seconds since the epoch, or None."""
        ends = (end_s for start_s, end_s in self._spans(at_s, days=1) if start_s <= at_s < end_s)
        return max(ends, default=None)

    def next_start(self, at_s: float) -> float:
        """Return `at_s` if a window contains it, else the start of the next one."""
        if self.open_until(at_s) is not None:
            return at_s
        later = (start_s for start_s, end_s in self._spans(at_s, days=9) if at_s < start_s < end_s)
        return min(later, default=math.inf)

    def _spans(self, at_s: float, *, days: int) -> Iterator[tuple[float, float]]:
        """Yield start and end of the windows from the day before `at_s` to `days` days after."""
        today = datetime.fromtimestamp(at_s, self.zone).date()
        for number in range(-1, days + 1):
            day = today + timedelta(days=number)
            for window in self.windows:
                if day.weekday() in window.days:
                    yield self._instant(day, window.start_min), self._instant(day, window.end_min)

    def _instant(self, day: date, minutes: int) -> float:
        midnight = datetime(day.year, day.month, day.day, tzinfo=self.zone)
        return (midnight + timedelta(minutes=minutes)).timestamp()  # adds local time


@lru_cache(maxsize=10_000)
def parse_bulk_hours(text: str) -> BulkHours:
    """Return the hours that `text` describes: windows, separated by commas, and a time zone.

    A window is `HH:MM-HH:MM`, optionally after the days on which it starts, such as `Fri` or
    `Mon-Fri`. It ends on the next day if its end is not later than its start. Raises
    InvalidBulkHoursError.
    """
    if len(text) > BULK_HOURS_CHARS_MAX:
        raise InvalidBulkHoursError(f"Give at most {BULK_HOURS_CHARS_MAX} characters.")
    given, _, zone = text.strip().rpartition(" ")
    parts = [part.strip() for part in given.split(",")]
    if len(parts) > _WINDOWS_MAX:
        raise InvalidBulkHoursError(f"Give at most {_WINDOWS_MAX} windows.")
    windows = tuple(_window(part) for part in parts)
    try:
        return BulkHours(windows, ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        message = f"'{zone}' is no time zone. Give a name such as Europe/Berlin or UTC."
        raise InvalidBulkHoursError(message) from None


def _window(text: str) -> _Window:
    found = _WINDOW.fullmatch(text)
    if found is None:
        raise InvalidBulkHoursError(
            "Give windows such as '22:00-06:00' or 'Sat-Sun 00:00-24:00', separated by commas, and"
            " then a time zone such as Europe/Berlin."
        )
    start, end = _minutes(found["start"]), _minutes(found["end"])
    if start in {_MINUTES_OF_DAY, end}:
        raise InvalidBulkHoursError(f"The window '{text}' is empty.")
    return _Window(
        _days(found["first"], found["last"]), start, end if end > start else end + _MINUTES_OF_DAY
    )


def _minutes(text: str) -> int:
    minutes = int(text[:2]) * 60 + int(text[3:])
    if minutes > _MINUTES_OF_DAY:
        raise InvalidBulkHoursError(f"'{text}' is no time of a day.")
    return minutes


def _days(first: str | None, last: str | None) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    for name in (first, last or first):
        if name.lower() not in _DAYS:
            raise InvalidBulkHoursError(f"'{name}' is no day. Give Mon, Tue, Wed and so on.")
    start, end = _DAYS.index(first.lower()), _DAYS.index((last or first).lower())
    return frozenset((start + number) % 7 for number in range((end - start) % 7 + 1))


def next_opening(at_s: float, hours: Sequence[BulkHours]) -> float:
    """Return the first time from `at_s` on at which all `hours` are open; inf: they never are."""
    found_s = at_s
    while found_s < at_s + _SEARCH_S:
        later_s = max((one.next_start(found_s) for one in hours), default=found_s)
        if later_s == found_s:
            return found_s
        found_s = later_s
    return math.inf


def next_closing(at_s: float, hours: Sequence[BulkHours]) -> float:
    """Return a time until which all `hours`, open at `at_s`, stay open; inf: they never close.

    They may stay open beyond it, in a window that follows.
    """
    ends = (end_s for one in hours if (end_s := one.open_until(at_s)) is not None)
    return min(ends, default=math.inf)
