"""Goal: long work runs round robin, and no offset after it is committed before its last step."""

import threading
from functools import partial
from uuid import UUID

import pytest

from results.writer.open_work import ROUND_ROBIN_MAX, OpenWork, WorkStep, run_all

HERE, THERE = ("results", 1), ("results", 2)
JOB = UUID(int=1)


class Work:
    """Steps of named works, and a record of those that ran."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.is_away = False

    def steps(self, name: str, count: int) -> list[WorkStep]:
        return [partial(self._step, name, 1, count)]

    def tree(self, name: str, depth: int) -> list[WorkStep]:
        """Return two steps, each of which leads to as many until `depth`."""
        return [partial(self._branch, f"{name}{side}", depth) for side in "ab"]

    def _step(self, name: str, number: int, count: int) -> list[WorkStep]:
        if self.is_away:
            raise ConnectionError
        self.done.append((name, number))
        return [partial(self._step, name, number + 1, count)] if number < count else []

    def _branch(self, name: str, depth: int) -> list[WorkStep]:
        self.done.append((name, depth))
        return self.tree(name, depth - 1) if depth > 1 else []


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def opened() -> OpenWork:
    return OpenWork()


def run_rest(opened: OpenWork) -> None:
    while opened:
        opened.run_step()


def test_open_work_runs_round_robin(work: Work, opened: OpenWork) -> None:
    for offset, (name, count) in enumerate((("long", 3), ("longer", 4), ("short", 1))):
        opened.add({HERE: offset}, [JOB], work.steps(name, count))
    assert len(opened) == 2  # the short one is done
    run_rest(opened)
    assert work.done[:3] == [("long", 1), ("longer", 1), ("short", 1)]
    order = [("long", 2), ("longer", 2), ("long", 3), ("longer", 3), ("longer", 4)]
    assert work.done[3:] == order


def test_above_the_round_robin_limit_the_oldest_work_ends_first(
    work: Work, opened: OpenWork
) -> None:
    for number in range(ROUND_ROBIN_MAX + 2):
        opened.add({HERE: number}, [JOB], work.steps(str(number), 3))
    begun = len(work.done)
    for _ in range(5):
        opened.run_step()
    assert work.done[begun:] == [("0", 2), ("0", 3), ("1", 2), ("1", 3), ("2", 2)]
    opened.run_step()  # no crowd any more
    assert work.done[-1] == ("3", 2)


def test_items_of_open_work_are_counted(work: Work, opened: OpenWork) -> None:
    for offset, (step_count, item_count) in enumerate(((2, 7), (3, 5), (1, 9))):
        steps = work.steps("w", step_count)
        opened.add({HERE: offset}, [JOB], steps, item_count=item_count)
    assert opened.item_count == 12
    opened.run_step()
    assert opened.item_count == 5


def test_follow_up_steps_run_before_the_next_step(work: Work, opened: OpenWork) -> None:
    opened.add({HERE: 0}, [JOB], work.tree("", 2))
    run_rest(opened)
    in_order = [("a", 2), ("aa", 1), ("ab", 1), ("b", 2), ("ba", 1), ("bb", 1)]
    assert work.done == in_order

    work = Work()
    assert run_all(work.tree("", 2), threading.Event())
    assert work.done == in_order


def test_stop_ends_between_two_steps(work: Work) -> None:
    stop = threading.Event()
    stop.set()
    assert not run_all(work.steps("w", 3), stop)
    assert work.done == []
    assert run_all([], stop)


def test_offsets_after_open_work_are_not_committed(work: Work, opened: OpenWork) -> None:
    opened.add({HERE: 7}, [JOB], work.steps("w", 2))
    assert opened.committable({HERE: 12, THERE: 3}) == {HERE: 7, THERE: 3}
    assert opened.committable({HERE: 5}) == {HERE: 5}
    opened.run_step()
    assert opened.committable({HERE: 12, THERE: 3}) == {HERE: 12, THERE: 3}


def test_failed_step_is_repeated(work: Work, opened: OpenWork) -> None:
    opened.add({HERE: 7}, [JOB], work.steps("w", 3))
    work.is_away = True
    for _ in range(2):
        with pytest.raises(ConnectionError):
            opened.run_step()
    work.is_away = False
    opened.run_step()
    assert work.done == [("w", 1), ("w", 2)]


def test_work_whose_first_step_failed_is_not_open(work: Work, opened: OpenWork) -> None:
    work.is_away = True
    with pytest.raises(ConnectionError):
        opened.add({HERE: 7}, [JOB], work.steps("w", 3))
    assert not opened
    assert opened.committable({HERE: 12}) == {HERE: 12}


def test_work_of_revoked_partitions_is_discarded(work: Work, opened: OpenWork) -> None:
    opened.add({HERE: 7}, [JOB], work.steps("lost", 2))
    opened.add({THERE: 8}, [JOB], work.steps("kept", 2))
    opened.add({HERE: 9, THERE: 9}, [JOB], work.steps("shared", 2))
    opened.discard({HERE})
    assert opened.committable({HERE: 12, THERE: 12}) == {HERE: 12, THERE: 8}
    run_rest(opened)
    opened.run_step()  # without work it does nothing
    assert work.done[3:] == [("kept", 2), ("shared", 2)]


def test_work_waits_for_open_work_of_its_job_only(work: Work, opened: OpenWork) -> None:
    other = UUID(int=2)
    opened.add({HERE: 7}, [JOB, other], work.steps("w", 2))
    opened.add({HERE: 8}, [other], work.steps("other", 4))
    opened.add_behind({HERE: 9}, JOB, work.steps("close", 2))
    opened.add_behind({HERE: 10}, JOB, work.steps("again", 1))
    assert opened.waiting_jobs == {JOB}
    assert opened.committable({HERE: 12}) == {HERE: 7}
    while opened.is_open(JOB):
        opened.run_step()
    its = [done for done in work.done if done[0] != "other"]
    assert its == [("w", 1), ("w", 2), ("close", 1), ("close", 2), ("again", 1)]
    assert opened.waiting_jobs == set()
    assert opened.is_open(other)
    assert opened.committable({HERE: 12}) == {HERE: 8}


def test_work_waits_until_its_first_step(work: Work, opened: OpenWork) -> None:
    other = UUID(int=2)
    opened.add({HERE: 7}, [JOB], work.steps("w", 2))
    opened.add({THERE: 7}, [other], work.steps("other", 3))
    opened.add_behind({HERE: 9}, JOB, work.steps("close", 2))
    opened.run_step()
    assert work.done[-1] == ("w", 2), "what it waits for has ended"
    assert opened.waiting_jobs == {JOB}
    opened.run_step()
    opened.run_step()
    assert work.done[-1] == ("close", 1)
    assert opened.waiting_jobs == set()


def test_waiting_work_is_discarded_with_its_partition(work: Work, opened: OpenWork) -> None:
    opened.add({HERE: 7, THERE: 7}, [JOB], work.steps("w", 2))
    opened.add_behind({HERE: 8}, JOB, work.steps("close", 1))
    opened.discard({HERE})
    assert opened.waiting_jobs == set()
    run_rest(opened)
    assert work.done == [("w", 1), ("w", 2)]
