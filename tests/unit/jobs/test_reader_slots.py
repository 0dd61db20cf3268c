"""Goal: files that a store does not open occupy a bounded number of slots, and leak no reader."""

import threading
from typing import cast

import pytest

from jobs.expansion.emission import ItemReader
from jobs.expansion.reader_slots import ReaderSlots, abandon_opening, wait_for_opening
from storage.objects.errors import ObjectStoreUnavailableError


class Reader:
    """A reader that notes its end."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.is_closed.set()


class Gate:
    """Opens files once it is open itself."""

    def __init__(self) -> None:
        self.is_open, self.reader = threading.Event(), Reader()

    def open_reader(self) -> ItemReader:
        assert self.is_open.wait(10)
        return cast("ItemReader", self.reader)


def test_files_that_failed_before_leave_half_of_the_slots_to_others() -> None:
    slots, gate = ReaderSlots(4), Gate()
    failing = [slots.start(gate.open_reader, has_failed=True) for _ in range(3)]
    others = [slots.start(gate.open_reader) for _ in range(3)]
    assert [opening is not None for opening in failing] == [True, True, False]
    assert [opening is not None for opening in others] == [True, True, False]
    assert slots.busy_count == 4

    gate.is_open.set()
    assert all(wait_for_opening(opening, 10) for opening in (*failing, *others) if opening)
    assert slots.busy_count == 0
    assert slots.start(gate.open_reader, has_failed=True) is not None


def test_a_round_does_not_wait_for_a_file_for_longer_than_it_says() -> None:
    slots, gate = ReaderSlots(), Gate()
    opening = slots.start(gate.open_reader)
    assert opening is not None
    assert not wait_for_opening(opening, 0.0)
    assert not wait_for_opening(opening, -1.0)
    gate.is_open.set()
    assert wait_for_opening(opening, 10)
    assert opening.result() is cast("ItemReader", gate.reader)


@pytest.mark.parametrize("is_late", [True, False])
def test_the_reader_of_an_abandoned_opening_is_closed(is_late: bool) -> None:
    slots, gate = ReaderSlots(), Gate()
    opening = slots.start(gate.open_reader)
    assert opening is not None
    if not is_late:
        gate.is_open.set()
        assert wait_for_opening(opening, 10)
    abandon_opening(opening)
    gate.is_open.set()
    assert gate.reader.is_closed.wait(10)


def test_a_failure_is_raised_where_the_reader_is_needed() -> None:
    def fail() -> ItemReader:
        raise ObjectStoreUnavailableError

    opening = ReaderSlots().start(fail)
    assert opening is not None
    assert wait_for_opening(opening, 10)
    with pytest.raises(ObjectStoreUnavailableError):
        opening.result()
