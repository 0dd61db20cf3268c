"""Goal: times of options are ISO 8601 or an offset from now; nothing else is a time."""

import pytest

from cli.instants import InvalidInstantError, instant_text, parse_instant

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "at_s"),
    [
        ("-2h", NOW_S - 7200),
        ("+30m", NOW_S + 1800),
        ("-3d", NOW_S - 259_200),
        ("-0s", NOW_S),
        ("2027-01-15T08:00:00Z", NOW_S),
        ("2027-01-15T09:00+01:00", NOW_S),
        ("2027-01-15T08:00", NOW_S),
        ("2027-01-15", NOW_S - 8 * 3600),
        ("-999999999d", 0.0),
    ],
)
def test_a_time_is_read(text: str, at_s: float) -> None:
    assert parse_instant(text, NOW_S) == at_s


@pytest.mark.parametrize("text", ["", "2h", "-2", "-2w", "yesterday", "-1.5h", "1969-01-01", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInstantError):
        parse_instant(text, NOW_S)


def test_a_time_is_written_in_utc() -> None:
    assert instant_text(NOW_S) == "2027-01-15T08:00:00Z"
    assert instant_text(1e300) == "-"
