"""Goal: a range never exceeds the object; anything but a single range gets the whole object."""

import pytest

from api.files.file_routes import ByteRange, RangeUnsatisfiableError, parse_range


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-0", ByteRange(0, 1)),
        ("bytes=2-", ByteRange(2, 8)),
        ("bytes=2-4", ByteRange(2, 3)),
        ("bytes=2-99999", ByteRange(2, 8)),
        ("bytes=-3", ByteRange(7, 3)),
        ("bytes=-99", ByteRange(0, 10)),
        (None, None),
        ("", None),
        ("bytes=-", None),
        ("bytes=4-2", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        ("bytes=" + "9" * 5000 + "-", None),
    ],
)
def test_a_single_range(header: str | None, expected: ByteRange | None) -> None:
    assert parse_range(header, 10) == expected


@pytest.mark.parametrize(
    ("header", "size"), [("bytes=10-", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)]
)
def test_a_range_after_the_end(header: str, size: int) -> None:
    with pytest.raises(RangeUnsatisfiableError):
        parse_range(header, size)
