"""Goal: a pool has a partition for each replica, and grows seldom."""

import queue
from functools import partial

import pytest

from gpu_consumers.partition_growth import (
    CHECK_S_MAX,
    PARTITIONS_MAX,
    REJOIN_S,
    PartitionRequests,
    Partitions,
    partitions_needed,
)
from tests.support.clock import ManualClock
from tests.support.until import until


@pytest.mark.parametrize(
    ("count", "members", "needed"),
    [
        (8, 1, 8),
        (8, 8, 8),
        (8, 9, 16),
        (0, 3, 4),
        (8, 100, 128),
        (12, 13, 24),
        (600, 700, PARTITIONS_MAX),
        (8, 10_000, PARTITIONS_MAX),
        (2000, 3000, 2000),
    ],
)
def test_partitions_double_until_each_member_has_one(count: int, members: int, needed: int) -> None:
    assert partitions_needed(count, members) == needed


def has_answer(answer: "queue.SimpleQueue[Partitions]") -> bool:
    return not answer.empty()


class Asking:
    """Requests whose answers a test sets, on a clock that it moves."""

    def __init__(self, *answers: Partitions) -> None:
        self.clock, self.answers = ManualClock(), [*answers]
        self.asked_s: list[float] = []
        self.requests = PartitionRequests(self._answer, self.clock)

    def _answer(self) -> Partitions:
        self.asked_s.append(self.clock.now_s)
        return self.answers.pop(0)

    def rejoins_s(self, seconds: int) -> list[float]:
        """Call it each second without a partition; return when it says to rejoin."""
        found = []
        for _ in range(seconds):
            self.clock.advance(1)
            rejoins = self.requests.should_rejoin(has_partitions=False)
            if (answer := self.requests._answer) is not None:
                until(partial(has_answer, answer))
                rejoins = self.requests.should_rejoin(has_partitions=False)
            if rejoins:
                found.append(self.clock.now_s)
        return found


def test_a_replica_rejoins_once_partitions_were_added() -> None:
    asking = Asking(Partitions.UNKNOWN, Partitions.ADDED, Partitions.UNKNOWN)
    assert asking.rejoins_s(10) == [7]
    assert asking.asked_s == [3, 7]


def test_a_replica_rejoins_late_if_there_are_enough_and_asks_more_and_more_seldom() -> None:
    asking = Asking(*[Partitions.ENOUGH] * 20)
    rejoins = asking.rejoins_s(300)
    assert rejoins[0] > REJOIN_S
    assert asking.asked_s[:5] == [3, 7, 15, 31, 63]
    assert asking.asked_s[-1] - asking.asked_s[-2] == CHECK_S_MAX


def test_an_answer_that_comes_after_the_partitions_is_ignored() -> None:
    asking = Asking(Partitions.ADDED)
    for seconds in (1, 3):
        asking.clock.advance(seconds)
        assert not asking.requests.should_rejoin(has_partitions=False)
    until(lambda: asking.asked_s)
    assert not asking.requests.should_rejoin(has_partitions=True)
    assert asking.rejoins_s(1) == []


def test_a_replica_with_partitions_asks_nothing() -> None:
    asking = Asking()
    for _ in range(100):
        asking.clock.advance(1)
        assert not asking.requests.should_rejoin(has_partitions=True)
    assert asking.rejoins_s(1) == []
    assert asking.asked_s == []
