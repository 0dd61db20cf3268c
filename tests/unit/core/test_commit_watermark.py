"""Goal: a database behind its watermark counts as one that lost commits, and nothing else does."""

from dataclasses import dataclass
from uuid import UUID

import pytest

from core.commit_watermark import GRACE_S, CommitWatch, CommitWatermark
from tests.support.clock import ManualClock

OURS, OTHER = UUID(int=1), UUID(int=2)


@dataclass
class Row:
    """A row whose reads may come from a standby that lags behind the primary."""

    primary: int
    read_number: int | None = None
    installation_id: UUID = OURS
    lost_above: int | None = None

    def read(self) -> CommitWatermark | None:
        number = self.primary if self.read_number is None else self.read_number
        return CommitWatermark(self.installation_id, number, self.lost_above)

    def confirm_loss(self, installation_id: UUID, known: int) -> bool:
        if installation_id != self.installation_id or self.primary >= known:
            return False
        self.lost_above = known
        return True


@dataclass
class Watched:
    clock: ManualClock
    watch: CommitWatch

    def is_lost(self, row: Row, log: int = 0, *, installation_id: UUID = OURS) -> bool:
        return self.watch.find_loss(row, {installation_id: log}) is not None

    def is_lost_after_grace(self, row: Row, log: int = 0) -> bool:
        assert not self.is_lost(row, log)
        self.clock.advance(GRACE_S)
        return self.is_lost(row, log)


@pytest.fixture
def watched() -> Watched:
    clock = ManualClock()
    return Watched(clock, CommitWatch(clock))


def test_a_number_below_that_of_the_log_is_a_loss_after_the_grace(watched: Watched) -> None:
    row = Row(6)
    assert watched.is_lost_after_grace(row, log=7)
    assert row.lost_above == 7


def test_a_number_below_an_earlier_one_is_a_loss_without_the_log(watched: Watched) -> None:
    assert not watched.is_lost(Row(7))
    assert watched.is_lost_after_grace(Row(6))


def test_a_recorded_loss_counts_at_once(watched: Watched) -> None:
    assert watched.is_lost(Row(9, lost_above=7))


@pytest.mark.parametrize("log", [0, 6, 7])
def test_a_log_that_knows_less_is_no_loss(watched: Watched, log: int) -> None:
    assert not watched.is_lost_after_grace(Row(7), log)


def test_a_connection_to_the_former_primary_is_no_loss_if_it_ends(watched: Watched) -> None:
    assert not watched.is_lost(Row(6), log=7)
    watched.clock.advance(GRACE_S / 2)
    assert not watched.is_lost(Row(7), log=7)
    watched.clock.advance(GRACE_S / 2)
    assert not watched.is_lost(Row(6), log=7)


def test_a_lagging_standby_that_answers_reads_is_no_loss(watched: Watched) -> None:
    row = Row(primary=9, read_number=6)
    assert not watched.is_lost_after_grace(row, log=9)
    assert row.lost_above is None


def test_the_log_of_another_installation_is_no_loss(watched: Watched) -> None:
    assert not watched.is_lost(Row(6), log=7, installation_id=OTHER)
    watched.clock.advance(GRACE_S)
    assert not watched.is_lost(Row(6), log=7, installation_id=OTHER)


def test_another_database_begins_anew(watched: Watched) -> None:
    assert not watched.is_lost(Row(7))
    assert not watched.is_lost_after_grace(Row(1, installation_id=OTHER))


def test_a_database_without_a_watermark_is_not_checked(watched: Watched) -> None:
    class Empty(Row):
        def read(self) -> CommitWatermark | None:
            return None

    assert not watched.is_lost_after_grace(Empty(0), log=7)
