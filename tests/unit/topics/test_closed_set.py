"""Goal: what is remembered of closed jobs is bounded in time and number, the newest last to go."""

from uuid import UUID

from topics.control import CLOSED_AGE_MS_MAX, ClosedSet


def known(closed: ClosedSet, *numbers: int) -> list[bool]:
    return [UUID(int=number) in closed for number in numbers]


def test_a_job_is_forgotten_when_its_records_have_left_the_log() -> None:
    closed = ClosedSet()
    closed.add(UUID(int=1), 1_000)
    closed.add(UUID(int=2), 2_000)
    closed.forget(1_000 + CLOSED_AGE_MS_MAX)
    assert known(closed, 1, 2) == [True, True]
    closed.forget(1_001 + CLOSED_AGE_MS_MAX)
    assert known(closed, 1, 2) == [False, True]


def test_of_too_many_the_oldest_are_forgotten() -> None:
    closed = ClosedSet(count_max=3)
    for number in range(1, 6):
        closed.add(UUID(int=number), number)
        closed.forget(0)
    assert known(closed, 1, 2, 3, 4, 5) == [False, False, True, True, True]
    assert len(closed) == 3


def test_a_job_that_is_closed_again_counts_as_new() -> None:
    closed = ClosedSet(count_max=2)
    for number in (1, 2, 1, 3):
        closed.add(UUID(int=number), number)
    closed.forget(0)
    assert known(closed, 1, 2, 3) == [True, False, True]


def test_a_job_can_be_opened_again() -> None:
    closed = ClosedSet()
    closed.add(UUID(int=1), 1)
    closed.discard(UUID(int=1).bytes)
    closed.discard(b"no id")
    closed.forget(0)
    assert known(closed, 1) == [False]
