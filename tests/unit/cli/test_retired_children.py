"""Goal: children come and go while the supervisor runs, without delay for the others."""

import signal
from pathlib import Path

import pytest

from tests.support.supervised_children import SupervisedStack, role


def names_of(stack: SupervisedStack, of_role: str) -> list[str]:
    return [child.name for child in stack.supervisor.children(of_role)]


def test_an_added_child_runs_and_is_restarted() -> None:
    stack = SupervisedStack(role("api", role="api"))

    stack.supervisor.add(role("replica-1", role="gpu-consumer"))
    assert names_of(stack, "gpu-consumer") == ["replica-1"]
    stack.end_newest()
    stack.seconds_until_restart()

    (child,) = stack.supervisor.children("gpu-consumer")
    assert (child.restarts, child.pid) == (1, stack.processes[-1].pid)


def test_a_child_that_cannot_be_added_now_is_started_later() -> None:
    stack = SupervisedStack()
    stack.failing_starts = 2

    stack.supervisor.add(role("replica-1", role="gpu-consumer"))
    (child,) = stack.supervisor.children("gpu-consumer")
    assert child.pid is None
    stack.supervisor.run(lambda: stack.clock.now_s > 105)

    (child,) = stack.supervisor.children("gpu-consumer")
    assert child.pid == 1000


def test_a_retired_child_drains_and_is_never_restarted(tmp_path: Path) -> None:
    stack = SupervisedStack(
        role("replica-1", role="gpu-consumer", stop_timeout_s=10.0, drain_timeout_s=45.0),
        stops_in_s=lambda child: 30.0,
        log_dir=tmp_path,
    )
    (tmp_path / "replica-1.log").write_text("line\n")
    began_s = stack.clock.now_s

    stack.supervisor.retire("replica-1")
    stack.supervisor.retire("replica-1")
    assert stack.clock.now_s == began_s
    assert [child.is_retiring for child in stack.supervisor.children("gpu-consumer")] == [True]
    stack.supervisor.run(lambda: not stack.supervisor.children("gpu-consumer"))
    ended_s = stack.clock.now_s
    stack.supervisor.run(lambda: stack.clock.now_s > ended_s + 60)

    assert ended_s - began_s == pytest.approx(30, abs=0.2)
    assert stack.events == [("replica-1", "SIGTERM"), ("replica-1", "reaped")]
    assert len(stack.processes) == 1
    assert (tmp_path / "replica-1.log").read_text() == "line\n"


def test_a_retired_child_is_killed_when_its_time_to_drain_is_over() -> None:
    stack = SupervisedStack(role("deaf", drain_timeout_s=45.0), stops_in_s=lambda child: 1e9)
    began_s = stack.clock.now_s

    stack.supervisor.retire("deaf")
    stack.supervisor.run(lambda: ("deaf", "reaped") in stack.events)

    assert stack.clock.now_s - began_s == pytest.approx(45, abs=0.2)
    assert stack.events == [("deaf", "SIGTERM"), ("deaf", "SIGKILL"), ("deaf", "reaped")]


def test_other_children_are_restarted_while_one_drains() -> None:
    stack = SupervisedStack(
        role("deaf", drain_timeout_s=45.0), role("api"), stops_in_s=lambda child: 40.0
    )
    stack.supervisor.retire("deaf")
    stack.end_newest()

    assert stack.seconds_until_restart() == pytest.approx(0.2, abs=0.1)


def test_a_child_that_waits_for_its_restart_is_retired_at_once() -> None:
    stack = SupervisedStack(role("crashing", role="gpu-consumer"))
    stack.end_newest()
    stack.supervisor.run_once()

    stack.supervisor.retire("crashing")
    stack.supervisor.run(lambda: stack.clock.now_s > 130)

    assert stack.supervisor.children("gpu-consumer") == []
    assert len(stack.processes) == 1


def test_a_name_is_free_once_its_retired_child_has_ended() -> None:
    stack = SupervisedStack(role("replica-1", role="gpu-consumer"), stops_in_s=lambda child: 3.0)
    stack.supervisor.retire("replica-1")
    with pytest.raises(AssertionError):
        stack.supervisor.add(role("replica-1", role="gpu-consumer"))

    stack.supervisor.run(lambda: stack.clock.now_s > 104)
    stack.supervisor.add(role("replica-1", role="gpu-consumer"))

    assert stack.supervisor.pid("replica-1") == 1001


def test_an_unknown_child_is_not_retired() -> None:
    with pytest.raises(KeyError):
        SupervisedStack().supervisor.retire("none")


def test_a_stop_bounds_the_drain_of_retired_children() -> None:
    stack = SupervisedStack(
        role("draining", stop_timeout_s=10.0, drain_timeout_s=45.0, stage=2),
        role("postgres", stage=0),
        stops_in_s=lambda child: 60.0 if child.name == "draining" else 0.5,
    )
    stack.supervisor.retire("draining")

    assert stack.seconds_to_stop() == pytest.approx(10.5, abs=0.3)
    kills = [name for name, event in stack.events if event == signal.SIGKILL.name]
    assert kills == ["draining"]


def test_tasks_repeat_in_each_pass_and_end_with_a_stop() -> None:
    stack = SupervisedStack()
    passes: list[float] = []

    stack.supervisor.repeat_task(lambda: passes.append(stack.clock.now_s))
    for _ in range(3):
        stack.supervisor.run_once()
    stack.supervisor.stop()
    stack.supervisor.run_once()

    assert len(passes) == 3
