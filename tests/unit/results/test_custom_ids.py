"""Goal: an id comes from the line of its item, and the input is opened only when asked for."""

from collections.abc import Callable

import pytest

from results.custom_ids import CustomIds, InputShorterError
from storage.objects import Blocks

INPUT = b'{"custom_id":"a","body":{}}\n\n  \n{"body":{"custom_id":"no"},"custom_id":"b"}\n' + (
    b'{"custom_id":"\\u00e9"}'
)


def opener(content: bytes, block_bytes: int = 7) -> tuple[Callable[[], Blocks], list[str]]:
    opened: list[str] = []

    def open_input() -> Blocks:
        opened.append("opened")
        pieces = iter([content[n : n + block_bytes] for n in range(0, len(content), block_bytes)])
        return Blocks(lambda _: next(pieces, b""), lambda: opened.append("closed"), None)

    return open_input, opened


@pytest.mark.parametrize(
    ("wanted", "found"), [([0, 1, 2], ["a", "b", "é"]), ([1], ["b"]), ([0, 2], ["a", "é"])]
)
def test_ids_come_in_item_order(wanted: list[int], found: list[str]) -> None:
    open_input, opened = opener(INPUT)
    custom_ids = CustomIds(open_input, input_bytes=len(INPUT))

    assert [custom_ids.at(index) for index in wanted] == found
    custom_ids.close()
    assert opened == ["opened", "closed"]


def test_nothing_is_opened_unasked() -> None:
    open_input, opened = opener(INPUT)

    CustomIds(open_input, input_bytes=len(INPUT)).close()

    assert opened == []


def test_an_input_that_lacks_the_item_is_an_error() -> None:
    open_input, _ = opener(INPUT)

    with pytest.raises(InputShorterError):
        CustomIds(open_input, input_bytes=len(INPUT)).at(3)


def test_a_line_that_cannot_be_read_has_no_id_and_holds_up_no_other() -> None:
    content = b'{"custom_id":"a"}\njunk\n{"custom_id":5}\n\xff\n{"custom_id":"e"}'
    open_input, _ = opener(content)
    custom_ids = CustomIds(open_input, input_bytes=len(content))

    assert [custom_ids.at(index) for index in range(5)] == ["a", "", "", "", "e"]
    assert custom_ids.unreadable_count == 3
