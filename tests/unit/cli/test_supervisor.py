"""Goal: children start as described and restart with backoff; a stop is ordered and bounded."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack import up_command
from cli.stack.errors import SettingsRefusedError, StackTimeoutError
from cli.stack.processes.child import LOG_BYTES_MAX, Child, ReadinessLines, spawn
from cli.stack.processes.role_children import CONTROL_PLANE, MODULES, role_child, role_command
from cli.stack.processes.supervisor import (
    BACKOFF_S_MIN,
    HEALTHY_S,
    LOGS_EVERY_S,
    STOP_S_MAX,
    backoff_s,
)
from tests.support.supervised_children import SupervisedStack, role


def test_backoff_doubles_up_to_its_limit() -> None:
    waits = [backoff_s(deaths, 5.0) for deaths in range(1, 40)]

    assert waits[:3] == [BACKOFF_S_MIN, 2 * BACKOFF_S_MIN, 4 * BACKOFF_S_MIN]
    assert waits == sorted(waits)
    assert waits[-1] == 5.0


def test_consecutive_exits_increase_the_backoff_until_a_healthy_run() -> None:
    stack = SupervisedStack(role("api"))

    waits = []
    for _ in range(4):
        stack.end_newest()
        waits.append(stack.seconds_until_restart())
    stack.clock.advance(HEALTHY_S)
    stack.end_newest()
    waits.append(stack.seconds_until_restart())

    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, BACKOFF_S_MIN], abs=0.05)
    assert stack.supervisor.restart_counts() == {"api": 5}


def test_failed_start_raises_and_failed_restart_increases_the_backoff() -> None:
    stack = SupervisedStack()
    stack.failing_starts = 1
    with pytest.raises(OSError, match="temporarily"):
        stack.supervisor.start([role("api")])
    stack.supervisor.start([role("api")])
    stack.end_newest()
    stack.failing_starts = 2

    assert stack.seconds_until_restart() == pytest.approx(0.2 + 0.4 + 0.8, abs=0.1)


def test_child_without_restart_is_not_restarted() -> None:
    stack = SupervisedStack(role("once", restart=False))
    stack.end_newest()

    stack.supervisor.run(lambda: stack.clock.now_s > 130)

    assert len(stack.processes) == 1
    assert stack.supervisor.pid("once") is None


def test_stages_stop_in_descending_order() -> None:
    stack = SupervisedStack(
        *(role("postgres", stage=0, stop_signal=signal.SIGINT), role("writer")),
        role("api", stage=2),
        stops_in_s=lambda child: 1.0,
    )

    stack.supervisor.stop()

    assert stack.events == [
        ("api", "SIGTERM"),
        ("api", "reaped"),
        ("writer", "SIGTERM"),
        ("writer", "reaped"),
        ("postgres", "SIGINT"),
        ("postgres", "reaped"),
    ]


def test_children_of_one_stage_stop_together_and_are_killed_after_their_timeout() -> None:
    stack = SupervisedStack(
        role("deaf", stop_timeout_s=3.0),
        *(role(f"good-{n}") for n in range(9)),
        stops_in_s=lambda child: 60.0 if child.name == "deaf" else 2.0,
    )

    assert stack.seconds_to_stop() == pytest.approx(3.0, abs=0.2)
    assert [name for name, event in stack.events if event == "SIGKILL"] == ["deaf"]


def test_stop_is_bounded_over_all_stages() -> None:
    deaf = (role(f"deaf-{n}", stage=n, stop_timeout_s=10.0) for n in range(5))
    stack = SupervisedStack(*deaf, stops_in_s=lambda child: 60.0)

    assert stack.seconds_to_stop() <= STOP_S_MAX
    assert sum(event == "SIGKILL" for _, event in stack.events) == 5


@pytest.mark.parametrize(
    ("log", "exit_code", "failure", "message"),
    [
        ("", 1, StackTimeoutError, "Kafka is not ready after 5 s"),
        (
            '{"event":"the role ends","reason":"no broker"}\n',
            1,
            StackTimeoutError,
            "after 5 s; gpu: no broker; see the logs",
        ),
        (
            'noise\n{"event":"x","reason":"no such parser"}\n{half\n',
            2,
            SettingsRefusedError,
            "gpu: no such parser",
        ),
    ],
    ids=["no log", "timeout", "refused settings"],
)
def test_a_failed_wait_names_its_condition_or_the_reasons_of_exits(
    tmp_path: Path, log: str, exit_code: int, failure: type[Exception], message: str
) -> None:
    (tmp_path / "gpu.log").write_text(log)
    stack = SupervisedStack(role("gpu"), role("api"), log_dir=tmp_path, exit_code=exit_code)
    if log:
        stack.processes[0].ends_s = stack.clock.now_s
    with pytest.raises(failure, match=message):
        stack.supervisor.wait_until(lambda: False, timeout_s=5, what="Kafka")


def test_a_wait_restarts_exited_children_and_a_stop_does_not() -> None:
    stack = SupervisedStack(role("kafka"))
    stack.end_newest()
    stack.supervisor.wait_until(lambda: len(stack.processes) == 2, timeout_s=5, what="Kafka")
    assert stack.supervisor.pid("kafka") == stack.processes[-1].pid

    stack.supervisor.stop()
    stack.supervisor.stop()
    stack.clock.advance(10)
    stack.supervisor.run_once()
    assert len(stack.processes) == 2


def test_refused_settings_after_the_start_affect_one_role(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "gpu.log").write_text('{"event":"the role ends","reason":"no such folder"}\n')
    stack = SupervisedStack(role("api"), role("gpu"), log_dir=tmp_path, exit_code=2)
    stack.end_newest()

    stack.supervisor.run(lambda: stack.clock.now_s > 130)

    assert stack.supervisor.pid("api") is not None
    assert stack.supervisor.restart_counts()["gpu"] == 1
    assert [r.reason for r in caplog.records] == ["exit code 2: no such folder"]  # type: ignore[attr-defined]


def test_large_log_is_rotated_while_the_child_writes(tmp_path: Path) -> None:
    stack = SupervisedStack(role("api"), log_dir=tmp_path)
    with (tmp_path / "api.log").open("ab") as written:
        written.truncate(LOG_BYTES_MAX + 1)
        stack.supervisor.run(lambda: stack.clock.now_s > 100 + 2 * LOGS_EVERY_S)
        written.write(b"more")

    assert (tmp_path / "api.log").read_bytes() == b"more"
    assert (tmp_path / "api.log.1").stat().st_size == LOG_BYTES_MAX + 1


def test_niceness_lowers_the_priority(tmp_path: Path) -> None:
    sleeps = (sys.executable, "-c", "import time; time.sleep(60)")
    process = spawn(Child(name="nice", argv=sleeps, niceness=7), tmp_path)
    try:
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 7
        group = Path(f"/proc/{process.pid}/autogroup")
        if group.exists():
            assert group.read_text().endswith(" nice 7\n")
    finally:
        process.kill_and_reap()


def test_only_bulk_roles_have_a_lower_priority() -> None:
    children = [role_child(name, role, {}) for name, (role, _, _) in CONTROL_PLANE.items()]
    unchanged = {child.name for child in children if child.niceness == 0}
    assert unchanged == {"api", "batcher-interactive"}
    assert role_child("gpu-consumer-1", "gpu-consumer", {}).niceness == 0


def import_path_command(command: tuple[str, ...], module: str) -> tuple[str, ...]:
    """Return a command that prints the file from which a role would import its module."""
    top = module.partition(".")[0]
    return (*command[: command.index("-m")], "-c", f"import {top}; print({top}.__file__)")


@pytest.mark.parametrize("role", MODULES)
def test_role_does_not_import_from_the_working_directory(role: str, tmp_path: Path) -> None:
    module = MODULES[role][0]
    (tmp_path / module.partition(".")[0]).with_suffix(".py").touch()

    command = import_path_command(role_command(role), module)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert not Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_subprocesses_of_a_role_do_not_import_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(os, "execve", lambda _, __, env: environments.append(env))
    up_command.run("api")
    child = role_child("api", "api", {})
    (tmp_path / "api.py").touch()
    command = (sys.executable, "-c", "import api; print(api.__file__)")

    for env in (environments[0], {**os.environ, **child.env}):
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert not Path(done.stdout.strip()).is_relative_to(tmp_path)


def test_role_runs_in_the_working_directory_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Relative paths in variables then mean the same for the stack and the role."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    prints_folder = (sys.executable, "-c", "import os; print(os.getcwd())")

    process = spawn(replace(role_child("api", "api", {}), argv=prints_folder), tmp_path)
    assert process._popen.wait(20) == 0
    process.kill_and_reap()

    assert (tmp_path / "api.log").read_text() == f"{here}\n"


READY = b'{"time":"t","level":"info","role":"intake","logger":"x","event":"ready"}\n'


def test_only_complete_lines_of_a_new_or_truncated_log_are_read(tmp_path: Path) -> None:
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake"), "there is no log yet"
    log = tmp_path / "intake.log"
    for size in range(len(READY)):
        log.write_bytes(READY[:size])
        assert not words.is_ready("intake")

    log.write_bytes(READY)
    assert words.is_ready("intake")

    later = ReadinessLines(tmp_path, ["intake"])
    assert not later.is_ready("intake"), "the event is of an earlier child"
    with log.open("ab") as file:
        file.write(b"a library's line\n" + READY)
    assert later.is_ready("intake")
    assert later.is_ready("intake")

    log.write_bytes(b"x" * 1000)
    truncated = ReadinessLines(tmp_path, ["intake"])
    log.write_bytes(READY)
    assert truncated.is_ready("intake")
