"""Goal: the split of a file into blocks does not change its lines."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from jobs.input.line_reader import BOM, Line, input_lines

LIMIT = 6

files = st.lists(
    st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b" ", BOM, b"0123456789", b"\xef", b"\n\n"]),
    max_size=30,
).map(b"".join)


def simple_lines(data: bytes) -> list[Line]:
    """Return the expected lines by a simple implementation."""
    found: list[Line] = []
    offset = len(BOM) if data.startswith(BOM) else 0
    for number, line in enumerate(data[offset:].split(b"\n"), 1):
        if len(line) > LIMIT and line.strip():
            found.append((number, offset, None))
        elif line.strip():
            found.append((number, offset, line))
        elif len(line) > LIMIT:
            found.append((number, offset, None))
        offset += len(line) + 1
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)]


@given(data=files, places=st.lists(st.integers(0, 200)))
def test_any_split_into_blocks_yields_the_same_lines(data: bytes, places: list[int]) -> None:
    assert list(input_lines(cut(data, places), line_bytes_max=LIMIT)) == simple_lines(data)


@given(data=files)
def test_reading_can_resume_at_every_line(data: bytes) -> None:
    all_lines = list(input_lines([data], line_bytes_max=LIMIT))
    for index, (number, offset, _) in enumerate(all_lines):
        rest = input_lines(
            [data[offset:]], line_bytes_max=LIMIT, offset=offset, lines_before=number - 1
        )
        if offset:
            assert list(rest) == all_lines[index:]
