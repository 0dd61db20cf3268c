"""Goal: roles run with the right import path, working directory and priority."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.stack import up_command
from cli.stack.processes.child import Child, ReadinessLines, spawn
from cli.stack.processes.role_children import CONTROL_PLANE, MODULES, role_child, role_command


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


def test_event_of_an_earlier_child_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(READY)
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake")

    with log.open("ab") as file:
        file.write(b"a library's line\n" + READY)

    assert words.is_ready("intake")
    assert words.is_ready("intake")


def test_incomplete_line_is_ignored(tmp_path: Path) -> None:
    words = ReadinessLines(tmp_path, ["intake"])
    assert not words.is_ready("intake"), "there is no log yet"
    log = tmp_path / "intake.log"
    for size in range(len(READY)):
        log.write_bytes(READY[:size])
        assert not words.is_ready("intake")

    log.write_bytes(READY)

    assert words.is_ready("intake")


def test_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    log = tmp_path / "intake.log"
    log.write_bytes(b"x" * 1000)
    words = ReadinessLines(tmp_path, ["intake"])

    log.write_bytes(READY)

    assert words.is_ready("intake")
