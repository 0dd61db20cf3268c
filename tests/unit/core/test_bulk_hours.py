"""Goal: bulk hours open and close at their local times, also when clocks change."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.bulk_hours import (
    BulkHours,
    InvalidBulkHoursError,
    next_closing,
    next_opening,
    parse_bulk_hours,
)

NIGHT = "22:00-06:00 Europe/Berlin"


def at(text: str) -> float:
    """Return a time given with its offset, or in UTC, in seconds since the epoch."""
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def opening(text: str, at_s: float) -> float:
    return next_opening(at_s, [parse_bulk_hours(text)])


def closing(text: str, at_s: float) -> float:
    return next_closing(at_s, [parse_bulk_hours(text)])


def test_a_window_over_midnight_is_open_on_both_days() -> None:
    for now in ("2026-07-01T22:00+02:00", "2026-07-02T00:00+02:00", "2026-07-02T05:59:59+02:00"):
        assert opening(NIGHT, at(now)) == at(now)
        assert closing(NIGHT, at(now)) == at("2026-07-02T06:00+02:00")
    for now in ("2026-07-02T06:00+02:00", "2026-07-02T21:59:59+02:00"):
        assert opening(NIGHT, at(now)) == at("2026-07-02T22:00+02:00")


def test_a_window_follows_the_local_clock_in_summer_and_winter() -> None:
    assert opening(NIGHT, at("2026-07-01T12:00")) == at("2026-07-01T20:00")
    assert opening(NIGHT, at("2026-12-01T12:00")) == at("2026-12-01T21:00")


def test_clocks_that_go_forward_shorten_a_night() -> None:
    # 2026-03-29: 02:00 CET is followed by 03:00 CEST.
    start = opening(NIGHT, at("2026-03-28T12:00"))
    assert start == at("2026-03-28T21:00")
    assert closing(NIGHT, start) - start == 7 * 3600
    # 02:30 does not occur; with the offset before the change it is 03:30 CEST.
    assert opening("02:30-05:00 Europe/Berlin", at("2026-03-29T00:30")) == at("2026-03-29T01:30")
    # A window inside of the missing hour keeps its length.
    within = opening("02:15-02:45 Europe/Berlin", at("2026-03-29T00:30"))
    assert within == at("2026-03-29T03:15+02:00")


def test_clocks_that_go_back_lengthen_a_night() -> None:
    # 2026-10-25: 03:00 CEST is followed by 02:00 CET.
    start = opening(NIGHT, at("2026-10-24T12:00"))
    assert start == at("2026-10-24T20:00")
    assert closing(NIGHT, start) - start == 9 * 3600
    # 02:30 occurs twice: a window starts and ends with the first one.
    assert opening("02:30-05:00 Europe/Berlin", at("2026-10-24T22:00")) == at("2026-10-25T00:30")
    assert closing("22:00-02:30 Europe/Berlin", at("2026-10-24T22:00")) == at("2026-10-25T00:30")


@pytest.mark.parametrize("day", ["2026-03-28", "2026-10-24", "2026-06-01"])
@pytest.mark.parametrize("meet", ["01:30", "02:00", "02:30", "03:00"])
def test_windows_that_meet_leave_no_gap(day: str, meet: str) -> None:
    text = f"22:00-{meet}, {meet}-22:00 Europe/Berlin"
    start_s = at(f"{day}T12:00")
    for minute in range(24 * 60):
        assert opening(text, start_s + 60 * minute) == start_s + 60 * minute


def test_days_are_those_on_which_a_window_starts() -> None:
    text = "Fri 22:00-06:00, Sat-Sun 12:00-13:00 UTC"
    assert opening(text, at("2026-07-02T00:00")) == at("2026-07-03T22:00")  # Thursday
    assert opening(text, at("2026-07-04T05:00")) == at("2026-07-04T05:00")  # Saturday morning
    assert opening(text, at("2026-07-04T06:00")) == at("2026-07-04T12:00")
    assert opening(text, at("2026-07-05T13:00")) == at("2026-07-10T22:00")  # the next Friday
    assert opening("Sat-Mon 00:00-24:00 UTC", at("2026-07-07T00:00")) == at("2026-07-11T00:00")


def test_all_hours_must_be_open() -> None:
    night, weekend = (
        parse_bulk_hours("22:00-06:00 UTC"),
        parse_bulk_hours("sat-sun 00:00-24:00 UTC"),
    )
    monday = at("2026-06-29T12:00")
    assert next_opening(monday, [night, weekend]) == at("2026-07-04T00:00")
    assert next_closing(at("2026-07-04T00:00"), [night, weekend]) == at("2026-07-04T06:00")
    day = parse_bulk_hours("08:00-20:00 UTC")
    assert next_opening(monday, [night, day]) == math.inf
    assert next_opening(monday, []) == monday
    assert next_closing(monday, []) == math.inf


def test_a_window_that_a_change_of_clocks_leaves_empty_opens_a_week_later() -> None:
    # On 2026-03-29, 02:30 is 03:30 CEST, after the end of the window.
    text = "Sun 02:30-03:15 Europe/Berlin"
    assert opening(text, at("2026-03-23T12:00")) == at("2026-04-05T02:30+02:00")


def test_hours_of_two_zones_may_meet_only_after_a_change_of_clocks() -> None:
    hours = [parse_bulk_hours("04:00-05:00 UTC"), parse_bulk_hours("06:00-07:00 Europe/Berlin")]
    assert next_opening(at("2026-02-28T12:00"), hours) == at("2026-03-29T04:00")
    # 35 days or more are searched, and deadlines are within 30 days.
    assert next_opening(at("2026-01-20T12:00"), hours) == math.inf


ZONES = ("UTC", "Europe/Berlin", "Australia/Lord_Howe", "America/Santiago", "Asia/Kathmandu")
clock_times = st.integers(0, 95).map(lambda quarter: f"{quarter // 4:02}:{quarter % 4 * 15:02}")
day_names = st.sampled_from(["", "Sun ", "Sat-Mon ", "Wed "])
windows = st.tuples(day_names, clock_times, clock_times).filter(lambda one: one[1] != one[2])
texts = st.builds(
    lambda given, zone: f"{', '.join(f'{day}{start}-{end}' for day, start, end in given)} {zone}",
    st.lists(windows, min_size=1, max_size=3),
    st.sampled_from(ZONES),
)


def is_open(at_s: float, text: str) -> bool:
    """Compute it from the definition, without weeks and caches."""
    hours = parse_bulk_hours(text)
    local = datetime.fromtimestamp(at_s, hours.zone)
    for number in range(-3, 2):
        day = datetime(local.year, local.month, local.day, tzinfo=hours.zone)
        day += timedelta(days=number)
        for window in hours.windows:
            start, end = (
                (day + timedelta(minutes=minutes)).timestamp()
                for minutes in (window.start_min, window.end_min)
            )
            if day.weekday() in window.days and start <= at_s < end:
                return True
    return False


@given(
    given_texts=st.lists(texts, min_size=1, max_size=2),
    # Minutes of 2026, most of them close to a change of clocks.
    minute=st.integers(0, 365 * 1440) | st.integers(86 * 1440, 96 * 1440),
)
@settings(max_examples=200)
def test_openings_and_closings_are_those_of_the_definition(
    given_texts: list[str], minute: int
) -> None:
    now_s = at("2026-01-01T00:00") + 60 * minute
    hours = [parse_bulk_hours(text) for text in given_texts]

    def all_open(at_s: float) -> bool:
        return all(is_open(at_s, text) for text in given_texts)

    opens_s = next_opening(now_s, hours)
    until_s = min(opens_s, now_s + 31 * 86_400)
    assert not any(all_open(now_s + k * 1800) for k in range(math.ceil((until_s - now_s) / 1800)))
    if opens_s < math.inf:
        closes_s = next_closing(opens_s, hours)
        assert closes_s > opens_s
        step_s = (closes_s - opens_s) / 20
        assert all(all_open(opens_s + step_s * number) for number in range(20))


def test_each_week_of_hours_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    spans = BulkHours.spans

    def counted(hours: BulkHours, from_s: float, to_s: float) -> list[tuple[float, float]]:
        nonlocal count
        count += 1
        return spans(hours, from_s, to_s)

    monkeypatch.setattr(BulkHours, "spans", counted)
    hours = [parse_bulk_hours("09:00-10:01 UTC"), parse_bulk_hours("10:01-11:00 UTC")]
    for minute in range(1000):
        assert next_opening(at("2026-06-01T00:00") + minute, hours) == math.inf
    assert 0 < count <= 12  # two texts, at most six weeks


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "Give windows"),
        ("22:00-06:00", "Give windows"),
        ("Europe/Berlin", "Give windows"),
        ("22:00 Europe/Berlin", "Give windows"),
        ("22:00-06:00 Europe/Nowhere", "'Europe/Nowhere' is no time zone"),
        ("22:00-06:00 ../../etc/passwd", "is no time zone"),
        ("22:00-06:00 Europe", "is no time zone"),
        ("25:00-06:00 UTC", "'25:00' is no time of a day"),
        ("24:01-06:00 UTC", "'24:01' is no time of a day"),
        ("22:60-06:00 UTC", "Give windows"),
        ("06:00-06:00 UTC", "is empty"),
        ("24:00-06:00 UTC", "is empty"),
        ("Xyz 22:00-06:00 UTC", "'Xyz' is no day"),
        ("22:00-06:00,, UTC", "Give windows"),
        (", ".join(["22:00-06:00"] * 8) + " UTC", "at most 7 windows"),
        ("22:00-06:00 " + "A" * 200, "at most 200 characters"),
        ("22:00-06:00 \x00", "is no time zone"),
    ],
)
def test_other_texts_are_refused_with_the_part_that_is_wrong(text: str, part: str) -> None:
    with pytest.raises(InvalidBulkHoursError, match=part):
        parse_bulk_hours(text)
