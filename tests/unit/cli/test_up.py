"""Goal: mistakes on the command line of `up` end it before anything starts, as usage."""

import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave logs and signals of this process, which runs other tests too, as they are."""
    monkeypatch.setattr("cli.up.configure_logs", lambda _: None)
    monkeypatch.setattr("cli.up.stop_on_signals", threading.Event)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], "--port"),
        (["--port", "-1"], "--port"),
        (["--data", "/etc/passwd"], "is a file"),
        (["--model", "a", "--model", "a"], "--model a: give each name once"),
        (["--model", "a.b", "--model", "A-b"], "a-b-simulated"),
        (["--model", "=path"], "--model needs a name"),
        (["--engine", "vllm", "--model", "a"], "needs NAME=PATH"),
        (["--engine-option", "nope=1"], "--engine-option nope"),
        (["--engine-option", "concurrency=x"], "MILLRACE_ENGINE_CONCURRENCY"),
    ],
    ids=str,
)
def test_a_mistake_is_wrong_usage(arguments: list[str], told: str, tmp_path: Path) -> None:
    data = tmp_path / "data"

    done = CliRunner().invoke(app, ["up", "--data", str(data), *arguments])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert told in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not data.exists()


def test_a_wrong_setting_of_the_log_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_SESSION_TIMEOUT_S", "long")

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert "MILLRACE_KAFKA_SESSION_TIMEOUT_S" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_folder_that_cannot_be_made_is_told_in_one_line() -> None:
    done = CliRunner().invoke(app, ["up", "--data", "/proc/none"])

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == "millrace: /proc/none: No such file or directory\n"
