"""Goal: every index is in one file; reading resumes at its cursor or at the start of a file."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.expansion.cursors import ExpansionCursor
from jobs.input.input_files import InputFile, InputFiles

THREE = InputFiles("a", [InputFile("b", 10), InputFile("c", 15)])


def test_file_at_returns_the_file_that_holds_an_item() -> None:
    assert [THREE.file_at(index).key for index in (0, 9, 10, 14, 15, 999)] == list("aabbcc")
    assert [THREE.count_left(index) for index in (0, 9, 10, 14, 15)] == [10, 1, 5, 1, None]
    assert [file.key for file in THREE] == ["a", "b", "c"]


def test_a_single_file_holds_every_item() -> None:
    one = InputFiles("a")
    assert (one.file_at(0).key, one.file_at(10**6).key, one.count_left(5)) == ("a", "a", None)
    assert one.reading_start(ExpansionCursor()) == ExpansionCursor()


def test_reading_a_new_file_starts_at_its_first_byte() -> None:
    assert THREE.reading_start(ExpansionCursor(900, 12, 9)) == ExpansionCursor(900, 12, 9)
    assert THREE.reading_start(ExpansionCursor(1000, 13, 10)) == ExpansionCursor(0, 0, 10)
    assert THREE.reading_start(ExpansionCursor(70, 1, 11)) == ExpansionCursor(70, 1, 11)


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=6), indexes=st.sets(st.integers(0, 299))
)
def test_entries_are_grouped_by_file_in_order(sizes: list[int], indexes: set[int]) -> None:
    firsts = [sum(sizes[:n]) for n in range(len(sizes))]
    files = InputFiles("f0", [InputFile(f"f{n}", first) for n, first in enumerate(firsts) if n])
    found = list(files.group_by_file(sorted(indexes), lambda index: index))
    assert [index for _, group in found for index in group] == sorted(indexes)
    assert len({file.key for file, _ in found}) == len(found)
    assert all(files.file_at(index) == file for file, group in found for index in group)
