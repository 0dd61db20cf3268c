"""Goal: long closes go on in turn, and no offset behind one is committed before its last slice."""

from typing import cast
from uuid import UUID

from core.ids import new_uuid
from core.states import CloseReason
from results.closing import JobCloser
from results.open_closes import OpenCloses
from topics.records import Close

HERE, THERE = ("results", 1), ("results", 2)


class Slices:
    """Closes jobs in slices of ten items, and remembers which."""

    def __init__(self, totals: dict[UUID, int]) -> None:
        self._totals = totals
        self.done: list[tuple[UUID, int]] = []
        self.is_away = False

    def step(self, close: Close, first: int) -> int | None:
        if self.is_away:
            raise ConnectionError
        self.done.append((close.job_id, first))
        after = first + 10
        return after if after < self._totals[close.job_id] else None


def close(job_id: UUID) -> Close:
    return Close(job_id, 0, CloseReason.CANCELLED)


def begun(totals: dict[UUID, int]) -> tuple[Slices, OpenCloses]:
    slices = Slices(totals)
    return slices, OpenCloses(cast(JobCloser, slices))


def test_closes_go_on_in_turn() -> None:
    long, longer, short = new_uuid(), new_uuid(), new_uuid()
    slices, closes = begun({long: 20, longer: 30, short: 10})
    for offset, job_id in enumerate((long, longer, short)):
        closes.begin(HERE, offset, close(job_id))
    assert len(closes) == 2  # the short one is done
    while closes:
        closes.step()
    rest = [(long, 10), (longer, 10), (longer, 20)]
    assert slices.done == [(long, 0), (longer, 0), (short, 0), *rest]


def test_no_offset_behind_an_open_close_is_committed() -> None:
    long = new_uuid()
    _, closes = begun({long: 20})
    closes.begin(HERE, 7, close(long))
    assert closes.committable({HERE: 12, THERE: 3}) == {HERE: 7, THERE: 3}
    assert closes.committable({HERE: 5}) == {HERE: 5}
    closes.step()
    assert closes.committable({HERE: 12, THERE: 3}) == {HERE: 12, THERE: 3}


def test_a_slice_that_failed_is_done_again() -> None:
    long = new_uuid()
    slices, closes = begun({long: 30})
    closes.begin(HERE, 7, close(long))
    slices.is_away = True
    for _ in range(2):
        try:
            closes.step()
        except ConnectionError:
            continue
    slices.is_away = False
    closes.step()
    assert slices.done == [(long, 0), (long, 10)]


def test_closes_of_lost_partitions_are_left_to_their_owners() -> None:
    lost, kept = new_uuid(), new_uuid()
    slices, closes = begun({lost: 20, kept: 20})
    closes.begin(HERE, 7, close(lost))
    closes.begin(THERE, 8, close(kept))
    closes.forget({HERE})
    assert closes.committable({HERE: 9, THERE: 9}) == {HERE: 9, THERE: 8}
    closes.step()
    assert not closes
    assert slices.done[-1] == (kept, 10)


def test_a_try_again_after_the_last_was_forgotten_does_nothing() -> None:
    lost = new_uuid()
    slices, closes = begun({lost: 20})
    closes.begin(HERE, 7, close(lost))
    closes.forget({HERE})
    closes.step()
    assert slices.done == [(lost, 0)]
