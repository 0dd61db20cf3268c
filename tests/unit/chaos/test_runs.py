"""Goal: an aborted suite ends no run and loses no measure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, cast

import msgspec
import pytest

from chaos import runs
from chaos.arguments import parse
from chaos.errors import DrillError
from chaos.installations.installation import Installation, InstallationSpec
from chaos.reports.measures import Measure
from chaos.runs import Run, run_suite
from chaos.suites import DrillSpec, Suite


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
