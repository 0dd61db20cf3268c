"""Goal: any Retry-After value gives a bounded delay or none."""

import pytest

from core.retry_after import retry_after_s

MOST_S = 86_400.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("", None),
        ("120", 120.0),
        ("0", 0.0),
        ("99999999999999999999", MOST_S),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("١٢", None),
        ("Thu, 01 Jan 1970 00:20:00 GMT", 200.0),
        ("Thu, 01 Jan 1970 00:00:01 GMT", 0.0),
        ("Thu, 01 Jan 9999 00:00:01 GMT", MOST_S),
        ("Thu, 99 Foo 1970 99:99:99 GMT", None),
    ],
)
def test_a_retry_after_is_seconds_or_a_date(text: str | None, expected: float | None) -> None:
    assert retry_after_s(text, now_s=1000.0, s_max=MOST_S) == expected
