"""Goal: any line of a result file is found by index, and little of the file is read."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from results.finaliser.output_lines import LineTemplate
from results.views.result_file_lines import ResultFileLines
from results.views.result_sources import StoredFile
from tests.unit.results.views.stored import JOB_ID, MemoryObjects, row


def file_of(indexes: list[int], sizes: list[int]) -> bytes:
    template = LineTemplate(JOB_ID)
    lines = []
    for index, size in zip(indexes, sizes, strict=True):
        body = b'"%b"' % (b"x" * size)
        lines.append(b"".join(template.line(row(index, body=body), f'näme "{index}"')))
    return b"".join(lines)


def opened(content: bytes, **given: int) -> tuple[MemoryObjects, ResultFileLines]:
    objects = MemoryObjects({"f": content}, **given)
    return objects, ResultFileLines(objects.store, StoredFile("f", len(content)), JOB_ID)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_line_is_found(data: st.DataObject) -> None:
    indexes = sorted(data.draw(st.sets(st.integers(0, 400), max_size=60)))
    sizes = [data.draw(st.sampled_from([0, 10, 3000, 70_000, 200_000])) for _ in indexes]
    content = file_of(indexes, sizes)
    _, lines = opened(content, block_bytes=data.draw(st.sampled_from([100, 64_000, 2**20])))

    for index in data.draw(st.lists(st.integers(0, 401), max_size=8)):
        place, name = lines.find_line(index), lines.custom_id(index)
        if index not in indexes:
            assert (place, name) == (None, None)
            continue
        assert place is not None
        line = content[place[0] : sum(place)]
        assert line.startswith(b'{"id":"batch_req_%b%08x"' % (JOB_ID.hex.encode(), index))
        assert line.endswith(b"}\n")
        assert line.count(b"\n") == 1
        assert name == f'näme "{index}"'


def test_line_of_a_large_file_needs_few_reads() -> None:
    indexes = list(range(20_000))
    content = file_of(indexes, [400] * len(indexes))
    objects, lines = opened(content, block_bytes=2**20)

    place = lines.find_line(13_579)

    assert place is not None
    assert b"%08x" % 13_579 in content[place[0] : place[0] + 100]
    assert objects.bytes_read < len(content)  # the search reads complete blocks up to a newline


@pytest.mark.parametrize("order", ["rising", "mixed"])
def test_rising_indexes_read_the_file_once(order: str) -> None:
    indexes = list(range(0, 4000, 2))
    content = file_of(indexes, [100] * len(indexes))
    objects, lines = opened(content, block_bytes=4096)
    wanted = indexes if order == "rising" else random.Random(1).sample(indexes, 100)

    assert [lines.custom_id(index) for index in wanted] == [f'näme "{i}"' for i in wanted]
    if order == "rising":
        assert objects.bytes_read < 2 * len(content)


def test_empty_file_has_no_line() -> None:
    _, lines = opened(b"")

    assert lines.find_line(0) is None
    assert lines.custom_id(0) is None
