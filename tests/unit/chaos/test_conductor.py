"""Goal: what a fault or its cure comes to is known, and one that fails keeps none from healing."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.failures import DrillError
from chaos.histories import Recorder
from chaos.installation import Installation
from chaos.nemeses import conductor, processes
from chaos.nemeses.conductor import Conductor
from chaos.nemeses.cure import Cure, missed, nothing
from chaos.planning import Fault

NOWHERE = cast("Installation", None)


def conduct(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *faults: Callable[[], Cure]
) -> tuple[Conductor, list[tuple[str, str]]]:
    """Apply faults at once, and heal all of them at the same time."""
    kinds = {str(number): lambda _, __, f=fault: f() for number, fault in enumerate(faults)}
    monkeypatch.setattr(conductor, "FAULTS", kinds)
    plan = [Fault(at_s=0.0, kind=kind, target="t", lasts_s=0.01) for kind in kinds]
    with closing(Recorder(tmp_path / "h.jsonl")) as recorder:
        conducting = Conductor(NOWHERE, plan, recorder)
        conducting.start()
        conducting.join()
        told = [(step.op, str(step.phase)) for step in recorder.so_far() if step.phase != "invoke"]
    return conducting, told


def test_a_cure_that_fails_is_told_and_the_next_is_applied(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    healed: list[int] = []

    def fail() -> None:
        raise RuntimeError("the proxy is gone")

    found, told = conduct(monkeypatch, tmp_path, lambda: fail, lambda: lambda: healed.append(1))
    assert healed == [1]
    assert [reason.split(":")[0] for reason in found.unhealed] == ["0 t"]
    assert told == [("fault", "ok"), ("fault", "ok"), ("heal", "fail"), ("heal", "ok")]
    assert found.healed_s <= time.monotonic()


def test_a_fault_that_hit_nobody_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse() -> Cure:
        raise DrillError("no")

    found, told = conduct(monkeypatch, tmp_path, lambda: missed, refuse, lambda: nothing)
    assert found.failures == ["0 t: nobody there", "1 t: DrillError"]
    assert told == [("fault", "fail"), ("fault", "fail"), ("fault", "ok"), ("heal", "ok")]


def test_a_signal_says_whether_it_met_a_process() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as alive:
        assert processes.send(alive.pid, signal.SIGKILL)
    assert not processes.send(alive.pid, signal.SIGKILL)


def test_a_kill_of_what_is_dead_is_missed() -> None:
    class Dead:
        def roles(self) -> dict[str, int]:
            return {}

    class Running:
        hosts: dict[str, Any] = {"a": Dead()}  # noqa: RUF012

    running = cast("Installation", Running())
    assert processes.kill(running, "a/api") is missed
    assert processes.pause(running, "a/api") is missed
