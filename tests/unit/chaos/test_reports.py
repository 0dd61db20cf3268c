"""Goal: a report has the worst number, the failed trials and their confidence bound."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.reporting import write_json
from chaos.drills.poison_items import p95_increase_s
from chaos.measures import (
    OTHER_DRILLS,
    Measure,
    Relation,
    failure_rate_bound,
    number,
    report_content,
    summarise,
    table,
    violation_lines,
)


def measure(promise: str, value: float, limit: float = 0, relation: Relation = "<=") -> Measure:
    return Measure(promise, "w", value, limit=limit, relation=relation)


def test_trials_of_one_round_are_not_independent() -> None:
    """Each cancelled job is a trial of P7: 4 trials in 2 rounds, one of which failed in both of its
    own.
    """
    found = [
        msgspec.structs.replace(measure("P7", value), part="cancel", rerun=seed)
        for seed, value in (("1", 0), ("1", 0), ("2", 3), ("2", 3))
    ]
    (summary,) = summarise(found)
    assert (summary.trials, summary.rounds, summary.failures) == (4, 2, 2)
    assert summary.round_bound == failure_rate_bound(1, 2) > summary.bound
    assert "| 4 of 200 cancelled jobs, 2 rounds | 2 | 90.2 % (97.5 % by round) |" in table(found)


def test_trials_of_other_drills_are_counted_separately() -> None:
    storms = [msgspec.structs.replace(measure("P2", 0), part="storm", rerun="a")]
    others = [msgspec.structs.replace(measure("P2", 0), part=OTHER_DRILLS, rerun=r) for r in "bcd"]
    assert [found.trials for found in summarise(storms + others)] == [1, 3]
    lines = table(storms + others)
    assert "| storm | 0 | ≤ 0 | 1 of 20 storms | 0 | 95.0 % |" in lines
    assert "| other drills | 0 | ≤ 0 | 3 | 0 | 63.2 % |" in lines


@pytest.mark.parametrize(
    ("values", "limit", "relation", "worst", "failures", "violations"),
    [
        ((0, 0, 3, 0), 0, "<=", 3, 1, 1),
        ((0.95, 0.8), 0.9, ">=", 0.8, 1, 1),
        ((9,), 2, "goal", 9, 1, 0),
        ((99,), 0, "report", 99, 0, 0),
    ],
)
def test_the_worst_value_and_the_failures_follow_the_relation(
    values: tuple[float, ...],
    limit: float,
    relation: Relation,
    worst: float,
    failures: int,
    violations: int,
) -> None:
    measures = [measure("P2", value, limit, relation) for value in values]
    (found,) = summarise(measures)
    assert (found.worst, found.trials, found.failures) == (worst, len(values), failures)
    assert sum(one.is_violation for one in measures) == violations


def test_a_violation_has_the_command_to_repeat_it() -> None:
    broken = msgspec.structs.replace(measure("P1", 9), seed=8, rerun="python -m chaos --seed 8")
    (line,) = violation_lines([measure("P1", 0), measure("A12", 9, relation="goal"), broken])
    assert line.startswith("BROKEN P1 w: 9")
    assert line.endswith("seed 8, alone: python -m chaos --seed 8")


def test_a_table_has_a_line_for_each_measure_in_order() -> None:
    lines = table([measure("P1", 0), measure("P2", 2)]).splitlines()
    assert len(lines) == 4
    assert "goal ≤ 2" in table([measure("A12", 9, 2, "goal")])
    assert lines[3].startswith("| P2 | w |  | 2 | ≤ 0 | 1 of 20 storms | 1 | 100.0 % |")
    found = summarise([measure(name, 0) for name in ("A12", "P10", "P2", "P1")])
    assert [summary.promise for summary in found] == ["P1", "P2", "P10", "A12"]


def test_the_json_has_every_number(tmp_path: Path) -> None:
    write_json(tmp_path / "out" / "chaos.json", report_content({"seed": 7}, [measure("P1", 0)]))
    found = msgspec.json.decode((tmp_path / "out" / "chaos.json").read_bytes())
    assert found["seed"] == 7
    assert found["summaries"][0]["trials"] == len(found["measures"]) == 1


def test_numbers_are_short() -> None:
    assert [number(value) for value in (0, 12345, 1.234)] == ["0", "12,345", "1.23"]
    assert {number(float(value)) for value in ("inf", "-inf", "nan")} == {"never"}


def test_an_unknown_p95_is_an_infinite_increase() -> None:
    never, alone, during = float("inf"), [1.0, 1.2], [1.5, 3.0]
    assert p95_increase_s(alone, during) == 1.8
    assert (
        p95_increase_s(alone, [1.5, never])
        == p95_increase_s([never], during)
        == p95_increase_s([never], [never])
    )
    assert p95_increase_s(alone, [never]) == never
    assert "| never |" in table([measure("P13", p95_increase_s([never], [never]))])


@pytest.mark.parametrize(
    ("failures", "trials", "bound"),
    [
        *((0, trials, 1 - 0.05 ** (1 / trials)) for trials in (1, 5, 20, 200, 5000)),
        *((1, 10, 0.3942), (5, 100, 0.1023)),  # of published tables
        *((0, 0, 1.0), (3, 3, 1.0)),
    ],
)
def test_the_bound_is_that_of_clopper_and_pearson(failures: int, trials: int, bound: float) -> None:
    tolerance = 1e-4 if failures else 1e-9
    assert failure_rate_bound(failures, trials) == pytest.approx(bound, abs=tolerance)
    with pytest.raises(ValueError, match="failures"):
        failure_rate_bound(trials + 1, trials)
