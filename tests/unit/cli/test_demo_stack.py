"""Goal: a failed demo keeps its logs, and a killed one leaves no folder for long."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.demo import demo_stack
from cli.stack.errors import StackTimeoutError
from cli.stack.processes.child import Child


@pytest.fixture(autouse=True)
def short_lived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the stack by a process that ends at once."""

    def short_process(_models: Mapping[str, Path], _data: Path) -> Child:
        return Child(name="up", argv=(sys.executable, "-c", "print('ready')"))

    monkeypatch.setattr(demo_stack, "_up", short_process)


@pytest.mark.parametrize("failure", [StackTimeoutError(), RuntimeError("a job failed")])
def test_failure_keeps_the_logs(failure: Exception, tmp_path: Path) -> None:
    logs = tmp_path / "logs"

    with pytest.raises(type(failure)), demo_stack.demo_stack({}, logs):
        raise failure

    assert (logs / "up.log").is_file()


def test_success_keeps_logs_on_request_only(tmp_path: Path) -> None:
    with demo_stack.demo_stack({}, tmp_path / "logs") as stack:
        pass
    assert not (tmp_path / "logs").exists()

    with demo_stack.demo_stack({}, tmp_path / "logs") as stack:
        stack.keep_logs()
    assert (tmp_path / "logs" / "up.log").is_file()


def test_folder_of_a_killed_demo_is_removed(tmp_path: Path) -> None:
    stale, unlocked = tmp_path / "millrace-demo-stale", tmp_path / "millrace-demo-data"
    other = tmp_path / "else"
    for folder in (stale, unlocked, other):
        (folder / "data" / "logs").mkdir(parents=True)
    (stale / "demo.lock").touch()

    demo_stack.remove_stale_folders(tmp_path, time.time())
    assert stale.exists(), "a starting demo may not have locked it yet"
    demo_stack.remove_stale_folders(tmp_path, time.time() + 120)

    assert not stale.exists()
    assert unlocked.exists(), "a folder without a lock file is not of a demo"
    assert other.exists()


def test_folder_of_a_running_demo_remains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with demo_stack.demo_stack({}, tmp_path / "logs"):
        (data,) = tmp_path.glob("millrace-demo-*")
        demo_stack.remove_stale_folders(tmp_path, time.time() + 120)
        assert data.exists()
    assert not data.exists()
