"""Goal: a round that tried nothing, broke off or lost a thread can never pass."""

import threading
from collections.abc import Callable, Iterator

import pytest

from chaos.arguments import parse
from chaos.checkers.states import Transition
from chaos.drills.storm import check_faults
from chaos.errors import DrillError
from chaos.reports.measures import OTHER_DRILLS, Measure
from chaos.reports.report import ABORTED_ROUNDS
from chaos.rounds import Round, run_round
from chaos.runs import Run
from chaos.verification.lifecycle import UnseenRows

ONE = Round("storm", frozenset({"P1"}), 7, "python -m chaos --part storm --seed 7")


def good(size: int = 1, promise: str = "P1") -> Measure:
    return Measure(promise=promise, what="w", value=0, size=size)


def no_lives() -> list[Measure]:
    return []


def broken(drill: Callable[[], list[Measure]]) -> Measure:
    """Return the one line that tells whether a round broke off."""
    (found,) = [m for m in run_round(ONE, drill, no_lives) if m.what == ABORTED_ROUNDS]
    return found


def test_a_round_that_ends_well_says_so_and_where_it_comes_from() -> None:
    found = run_round(ONE, lambda: [good(), good(promise="P2")], no_lives)
    assert [m.is_violation for m in found] == [False] * 3
    assert {(m.promise, m.part) for m in found} == {("P1", "storm"), ("P2", OTHER_DRILLS)}
    assert {(m.seed, m.rerun) for m in found} == {(7, ONE.rerun)}


@pytest.mark.parametrize("failure", [DrillError("not terminal"), KeyError("status")])
def test_a_round_that_breaks_off_has_failed(failure: Exception) -> None:
    def drill() -> list[Measure]:
        raise failure

    found = broken(drill)
    assert found.is_violation
    assert str(failure) in found.evidence


def test_a_thread_that_dies_fails_its_round() -> None:
    answer: dict[str, str] = {}

    def drill() -> list[Measure]:
        client = threading.Thread(target=lambda: answer["id"], name="client-3")
        client.start()
        client.join()
        return [good()]

    found = broken(drill)
    assert found.is_violation
    assert "client-3 died: KeyError" in found.evidence


def test_a_promise_of_which_nothing_was_measured_has_failed() -> None:
    assert broken(lambda: [good(promise="P2")]).is_violation


def test_lives_are_judged_even_of_a_round_that_breaks_off() -> None:
    def drill() -> list[Measure]:
        raise DrillError("not terminal")

    wrong = Measure(promise="P6", what="illegal", value=1)
    assert wrong.what in {m.what for m in run_round(ONE, drill, lambda: [wrong])}


def test_what_passes_by_need_not_happen_where_another_promise_is_tried() -> None:
    lives = [good(0, "P1"), good(0, "P9")]
    found = run_round(ONE, lambda: [good()], lambda: lives)
    assert [(m.promise, m.size) for m in found if m.what == "w"] == [("P1", 1), ("P1", 0)]


def test_nothing_looked_at_is_nothing_tried() -> None:
    said: list[str] = []
    run = Run(parse([]), said.append)
    report = Measure(promise="P1", what="seconds", value=1, size=0, relation="report")
    run.add_measures([good(0), good(3), report])
    assert [m.size for m in run.measures] == [3, 0]
    (reason,) = run.untried
    assert "P1 w" in reason


@pytest.mark.parametrize(
    ("planned", "no_target", "unhealed", "fails"),
    [
        (10, 2, 0, False),
        (10, 3, 0, True),
        (10, 0, 1, True),
    ],
)
def test_a_storm_must_hit_and_be_healed(
    planned: int, no_target: int, unhealed: int, fails: bool
) -> None:
    hits = {"kill": planned - no_target}
    reasons = ["kill a/api"] * no_target, ["pause b/api"] * unhealed
    found = check_faults({"kill": planned}, hits, *reasons)
    assert any(m.is_violation for m in found) == fails


def test_a_storm_without_faults_was_no_storm() -> None:
    judged = [m for m in check_faults({}, {}, [], []) if m.relation != "report"]
    assert judged
    assert not any(m.has_evidence for m in judged)


def test_a_storm_tells_which_kinds_hit_nobody() -> None:
    found, *_ = check_faults({"kill": 3, "rewind": 1}, {"kill": 2}, ["", ""], [])
    assert (found.value, found.size) == (1, 2)
    assert found.evidence == "kill 2 of 3, rewind 0 of 1"


def move(sequence: int) -> Transition:
    return Transition(job="j", old="validating", new="in_progress", sequence=sequence)


def test_a_row_is_judged_once_however_late_it_is_committed() -> None:
    unseen = UnseenRows()
    assert [m.sequence for m in unseen.filter([move(1), move(3)])] == [1, 3]
    assert [m.sequence for m in unseen.filter([move(1), move(2), move(3), move(4)])] == [2, 4]


def test_what_was_found_before_a_round_broke_off_is_kept() -> None:
    wrong = Measure(promise="P1", what="lost", value=3)

    def drill() -> Iterator[Measure]:
        yield wrong
        raise DrillError("nobody to kill")

    found = run_round(ONE, drill, no_lives)
    assert [(m.what, m.value) for m in found] == [("lost", 3), (ABORTED_ROUNDS, 1)]


def test_a_broken_number_over_nothing_is_broken() -> None:
    """Nobody looked at anything because all of it is missing."""
    run = Run(parse([]), lambda _: None)
    missing = Measure(promise="P13", what="missing", value=5000, size=0)
    run.add_measures([missing])
    assert (run.measures, run.untried) == ([missing], [])
    found = run_round(ONE, lambda: [good()], lambda: [missing])
    assert "missing" in {m.what for m in found}
