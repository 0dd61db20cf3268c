"""Goal: a round that tested nothing, aborted or lost a thread cannot pass, and ends no run."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import pytest

from chaos import runs
from chaos.arguments import parse
from chaos.checkers.states import Transition
from chaos.drills.storm import check_faults
from chaos.errors import DrillError
from chaos.installations.installation import Installation, InstallationSpec
from chaos.measures import ABORTED_ROUNDS, OTHER_DRILLS, Measure
from chaos.runs import Round, Run, run_round, run_suite
from chaos.suites import DrillSpec, Suite
from chaos.verification.lifecycle import unseen_rows

ONE = Round("storm", frozenset({"P1"}), 7, "python -m chaos --part storm --seed 7")


def good(size: int = 1, promise: str = "P1") -> Measure:
    return Measure(promise, "w", 0, size=size)


def test_measures_of_a_round_have_its_origin() -> None:
    found = run_round(ONE, lambda: [good(), good(promise="P2")], list)
    assert [m.is_violation for m in found] == [False] * 3
    assert {(m.promise, m.part) for m in found} == {("P1", "storm"), ("P2", OTHER_DRILLS)}
    assert {(m.seed, m.rerun) for m in found} == {(7, ONE.rerun)}


def die() -> list[Measure]:
    answer: dict[str, str] = {}
    client = threading.Thread(target=lambda: answer["id"], name="client-3")
    client.start()
    client.join()
    return [good()]


def fail(failure: Exception) -> Callable[[], list[Measure]]:
    def drill() -> list[Measure]:
        raise failure

    return drill


@pytest.mark.parametrize(
    ("drill", "evidence"),
    [
        (fail(DrillError("not terminal")), "not terminal"),
        (fail(KeyError("status")), "status"),
        (die, "client-3 died: KeyError"),
        (lambda: [good(promise="P2")], ""),  # a promise of the round without measures
    ],
    ids=["failed", "broken", "dead thread", "without measures"],
)
def test_an_aborted_round_fails(drill: Callable[[], list[Measure]], evidence: str) -> None:
    found = run_round(ONE, drill, list)
    (aborted,) = [measure for measure in found if measure.what == ABORTED_ROUNDS]
    assert aborted.is_violation
    assert evidence in aborted.evidence


def test_the_lifecycle_is_checked_even_in_an_aborted_round() -> None:
    wrong = Measure("P6", "illegal", 1)
    found = run_round(ONE, fail(DrillError("not terminal")), lambda: [wrong])
    assert wrong.what in {m.what for m in found}


def test_other_promises_need_no_evidence() -> None:
    lifecycle = [good(0, "P1"), good(0, "P9")]
    found = run_round(ONE, lambda: [good()], lambda: lifecycle)
    assert [(m.promise, m.size) for m in found if m.what == "w"] == [("P1", 1), ("P1", 0)]


def test_a_measure_without_observations_is_untested() -> None:
    notes: list[str] = []
    run = Run(parse([]), notes.append)
    report = Measure("P1", "seconds", 1, size=0, relation="report")
    run.add_measures([good(0), good(3), report])
    assert [m.size for m in run.measures] == [3, 0]
    (reason,) = run.untried
    assert "P1 w" in reason


@pytest.mark.parametrize(
    ("planned", "no_target", "unhealed", "fails"),
    [(10, 2, 0, False), (10, 3, 0, True), (10, 0, 1, True)],
)
def test_a_storm_must_hit_targets_and_be_healed(
    planned: int, no_target: int, unhealed: int, fails: bool
) -> None:
    hits = {"kill": planned - no_target}
    reasons = ["kill a/api"] * no_target, ["pause b/api"] * unhealed
    found = check_faults({"kill": planned}, hits, *reasons)
    assert any(m.is_violation for m in found) == fails


def test_a_storm_without_hits_has_no_evidence_for_its_kinds() -> None:
    measures = [m for m in check_faults({}, {}, [], []) if m.relation != "report"]
    assert measures
    assert not any(m.has_evidence for m in measures)
    found, *_ = check_faults({"kill": 3, "rewind": 1}, {"kill": 2}, ["", ""], [])
    assert (found.value, found.size) == (1, 2)
    assert found.evidence == "kill 2 of 3, rewind 0 of 1"


def move(sequence: int) -> Transition:
    return Transition(job="j", old="validating", new="in_progress", sequence=sequence)


def test_a_row_is_checked_once_even_if_it_commits_late() -> None:
    seen: set[int] = set()
    assert unseen_rows([move(1), move(3)], seen) == [move(1), move(3)]
    assert unseen_rows([move(1), move(2), move(3), move(4)], seen) == [move(2), move(4)]


def test_measures_before_an_abort_are_kept() -> None:
    wrong = Measure("P1", "lost", 3)

    def drill() -> Iterator[Measure]:
        yield wrong
        raise DrillError("no role to kill")

    found = run_round(ONE, drill, list)
    assert [(m.what, m.value) for m in found] == [("lost", 3), (ABORTED_ROUNDS, 1)]


def test_a_violation_without_observations_counts() -> None:
    """Nothing was observed because everything is missing."""
    run = Run(parse([]), lambda _: None)
    missing = Measure("P13", "missing", 5000, size=0)
    run.add_measures([missing])
    assert (run.measures, run.untried) == ([missing], [])
    found = run_round(ONE, lambda: [good()], lambda: [missing])
    assert "missing" in {m.what for m in found}


def run_in(tmp_path: Path) -> Run:
    arguments = ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "chaos.json")]
    return Run(parse(arguments), lambda _: None, facts={"seed": 7})


def suite(*drills: DrillSpec) -> Suite:
    return Suite(
        name="s",
        build_spec=lambda data, _url, _skew_s: InstallationSpec(data=data, options=()),
        drills=drills,
    )


@pytest.mark.parametrize(
    ("failure", "reason"),
    [(DrillError("no mount"), "no mount"), (ValueError("a port"), "ValueError a port")],
)
def test_an_aborted_suite_is_untested_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, reason: str
) -> None:
    def run_installation(_: InstallationSpec) -> NoReturn:
        raise failure

    monkeypatch.setattr(runs, "run_installation", run_installation)
    run = run_in(tmp_path)
    run_suite(run, suite(), ())
    (untested,) = run.untried
    assert reason in untested
    assert msgspec.json.decode((tmp_path / "chaos.json").read_bytes())["untried"] == [untested]


def test_every_round_is_reported_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[str, Any]] = []

    def drill(_: object) -> list[Measure]:
        path = tmp_path / "chaos.json"
        written.append(msgspec.json.decode(path.read_bytes()) if path.exists() else {})
        return [Measure("P1", "lost", len(written))]

    class NoLifecycle:
        def __init__(self, _: object) -> None: ...

        def check(self, _: object) -> list[Measure]:
            return []

    @contextmanager
    def run_installation(spec: InstallationSpec) -> Iterator[Installation]:
        yield Installation(spec, *cast("tuple[Any, ...]", (None,) * 4))

    monkeypatch.setattr(runs, "run_installation", run_installation)
    monkeypatch.setattr(runs, "install_triggers", lambda _: None)
    monkeypatch.setattr(runs, "LifecycleChecker", NoLifecycle)
    spec = DrillSpec("p", drill, {"P1"}, rounds=(2, 2))
    run_suite(run_in(tmp_path), suite(spec), (spec,))
    assert written[0] == {}
    assert written[1]["seed"] == 7
    assert [one["value"] for one in written[1]["measures"] if one["what"] == "lost"] == [1]
