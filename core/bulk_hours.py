"""Bulk hours: the weekly hours of a time zone in which items of bulk jobs may be emitted. Pure.

A window is given in local time, as `22:00-06:00 Europe/Berlin`. Of a local time that occurs twice,
when clocks go back, it is the first; one that does not occur, when they go forward, has the UTC
offset from before the change (RFC 5545, 3.3.5). So windows that meet in local time meet in fact.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, TypeAlias
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
_DAY_S: Final = 86_400.0
_WEEK_S: Final = 7 * _DAY_S
_SEARCH_WEEKS: Final = 5  # 35 days or more: beyond the longest deadline, 30 days
_WEEKS_CACHED: Final = 4096  # at most 4 KiB each

_Span: TypeAlias = tuple[float, float]
"""Start and end, seconds since the epoch; the end is not in it."""


class InvalidBulkHoursError(ValueError):
    """Hours are windows such as `22:00-06:00` or `Sat-Sun 00:00-24:00`, and a time zone."""


@dataclass(frozen=True, slots=True)
class _Window:
    days: frozenset[int]  # on which it starts, Monday is 0
    start_min: int  # after midnight, local time
    end_min: int  # after the midnight on which it starts; above 24 h: on the next day


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: a cheap key of caches
class BulkHours:
    """Windows of a week in a time zone."""

    windows: tuple[_Window, ...]
    zone: ZoneInfo

    def spans(self, from_s: float, to_s: float) -> list[_Span]:
        """Return when they are open, in order and disjoint.

        These are all spans that begin before `to_s` and end after `from_s`.
        """
        merged: list[_Span] = []
        for start_s, end_s in sorted(self._windows_of(from_s, to_s)):
            if start_s >= end_s or end_s <= from_s or start_s >= to_s:
                continue  # a change of clocks may leave nothing of a window
            if merged and start_s <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(end_s, merged[-1][1])
            else:
                merged.append((start_s, end_s))
        return merged

    def _windows_of(self, from_s: float, to_s: float) -> Iterator[_Span]:
        """Yield start and end of each window that may lie between the times."""
        first = datetime.fromtimestamp(from_s, self.zone).replace(
            hour=0, minute=0, second=0, microsecond=0, fold=0
        )
        count = int((to_s - from_s) // _DAY_S) + 4  # from two days before to one day after
        midnights = [first + timedelta(days=number - 2) for number in range(count + 2)]
        offsets = [midnight.utcoffset() for midnight in midnights]
        for number, midnight in enumerate(midnights[:count]):
            windows = [one for one in self.windows if midnight.weekday() in one.days]
            if offsets[number] == offsets[number + 1] == offsets[number + 2]:
                # No window lasts longer than these days, in which clocks do not change.
                start_s = midnight.timestamp()
                for window in windows:
                    yield start_s + 60 * window.start_min, start_s + 60 * window.end_min
            else:
                for window in windows:
                    yield _instant(midnight, window.start_min), _instant(midnight, window.end_min)


def _instant(midnight: datetime, minutes: int) -> float:
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


def next_opening(at_s: float, hours: Iterable[BulkHours]) -> float:
    """Return the first time from `at_s` on at which all `hours` are open.

    It is inf if they are not open within 35 days, which is beyond each deadline. Costs a few
    microseconds once the weeks of these hours are cached.
    """
    key, week = tuple(hours), int(at_s // _WEEK_S)
    if not key:
        return at_s
    for number in range(week, week + _SEARCH_WEEKS + 1):
        starts, ends = _open_spans(key, number)
        index = bisect_right(ends, at_s)
        if index < len(ends):
            return max(at_s, starts[index])
    return math.inf


def next_closing(at_s: float, hours: Iterable[BulkHours]) -> float:
    """Return a time until which all `hours`, open at `at_s`, stay open; inf: they never close.

    They may stay open beyond it.
    """
    key = tuple(hours)
    if not key:
        return math.inf
    _, ends = _open_spans(key, int(at_s // _WEEK_S))
    index = bisect_right(ends, at_s)
    return ends[index] if index < len(ends) else at_s


@lru_cache(maxsize=_WEEKS_CACHED)
def _open_spans(
    hours: tuple[BulkHours, ...], week: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return starts and ends of the spans in which all are open that lie in a week, or in part.

    Weeks count from the epoch.
    """
    from_s, to_s = week * _WEEK_S, (week + 1) * _WEEK_S
    spans = hours[0].spans(from_s, to_s)
    for one in hours[1:]:
        spans = list(_intersection(spans, one.spans(from_s, to_s)))
    inside = [span for span in spans if span[0] < to_s and span[1] > from_s]
    return tuple(start_s for start_s, _ in inside), tuple(end_s for _, end_s in inside)


def _intersection(some: list[_Span], others: list[_Span]) -> Iterator[_Span]:
    """Yield the spans that lie in both lists of disjoint spans, in order."""
    first = second = 0
    while first < len(some) and second < len(others):
        start_s = max(some[first][0], others[second][0])
        end_s = min(some[first][1], others[second][1])
        if start_s < end_s:
            yield start_s, end_s
        if some[first][1] <= others[second][1]:
            first += 1
        else:
            second += 1
