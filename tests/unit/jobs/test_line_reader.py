"""Goal: every line has its number and offset, whatever its line end and length."""

from collections.abc import Iterator

import pytest

from jobs.input.line_reader import Line, input_lines


def lines(data: bytes, *, limit: int = 100) -> list[Line]:
    return list(input_lines([data], line_bytes_max=limit))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", []),
        (b"a", [(1, 0, b"a")]),
        (b"a\nb\n", [(1, 0, b"a"), (2, 2, b"b")]),
        (b"a\r\nb", [(1, 0, b"a\r"), (2, 3, b"b")]),
        (b"\n \t\r\n\na\n\n", [(4, 6, b"a")]),
        (b"\xef\xbb\xbfa\nb", [(1, 3, b"a"), (2, 5, b"b")]),
        (b"\xef\xbb\xbf", []),
        (b"\xef\xbb\xbf\n\xef\xbb\xbfa", [(2, 4, b"\xef\xbb\xbfa")]),
        (b"\xef\xbb", [(1, 0, b"\xef\xbb")]),
        (b"a\rb\x0bc\x0cd\n", [(1, 0, b"a\rb\x0bc\x0cd")]),
    ],
)
def test_lines(data: bytes, expected: list[Line]) -> None:
    assert lines(data) == expected


def test_only_lines_above_the_limit_are_too_long() -> None:
    assert lines(b"123\n1234\n12345\n1", limit=4) == [
        (1, 0, b"123"),
        (2, 4, b"1234"),
        (3, 9, None),
        (4, 15, b"1"),
    ]
    assert lines(b"12345", limit=4) == [(1, 0, None)]


def test_a_huge_line_is_not_kept_in_memory() -> None:

    def blocks() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 1_000_000
        yield b"\nlast"

    found = list(input_lines(blocks(), line_bytes_max=1_000_000))
    assert found == [(1, 0, None), (2, 200_000_001, b"last")]
