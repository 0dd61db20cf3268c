"""Goal: invalid options of `up` fail as wrong usage before anything starts."""

import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app
from cli.stack.embedded_stack import StackOptions
from cli.stack.processes.role_children import refuse_reserved_variables, shared_env

OUTSIDE = {
    "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
    "MILLRACE_DATABASE_URL": "postgresql://elsewhere/millrace",
    "MILLRACE_OBJECTS_KIND": "s3",
    "MILLRACE_OBJECTS_ROOT": "/elsewhere",
}
"""What names services of somebody else."""


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave logs and signals of this process, which runs other tests too, as they are."""
    monkeypatch.setattr("cli.stack.up_command.configure_logs", lambda _: None)
    monkeypatch.setattr("cli.stack.up_command.stop_on_signals", threading.Event)
    for name in OUTSIDE:  # which tests of services may have been given
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "99999"], "--port"),
        (["--port", "-1"], "--port"),
        (["--data", "/etc/passwd"], "is a file"),
        (["--model", "a", "--model", "a"], "--model a: each name may be given once"),
        (["--model", "a.b", "--model", "A-b"], "a-b-simulated"),
        (["--model", "=path"], "--model needs a name"),
        (["--engine", "vllm", "--model", "a"], "needs NAME=PATH"),
        (["--engine-option", "nope=1"], "--engine-option nope"),
        (["--engine-option", "concurrency=x"], "MILLRACE_ENGINE_CONCURRENCY"),
    ],
    ids=str,
)
def test_invalid_option_is_wrong_usage(arguments: list[str], told: str, tmp_path: Path) -> None:
    data = tmp_path / "data"

    done = CliRunner().invoke(app, ["up", "--data", str(data), *arguments])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert told in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not data.exists()


def test_invalid_kafka_setting_is_wrong_usage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_KAFKA_SESSION_TIMEOUT_S", "long")

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert "MILLRACE_KAFKA_SESSION_TIMEOUT_S" in done.stderr
    assert not (tmp_path / "data").exists()


def test_uncreatable_data_folder_is_one_error_line() -> None:
    done = CliRunner().invoke(app, ["up", "--data", "/proc/none"])

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == "millrace: /proc/none: No such file or directory\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("MILLRACE_API_PORT", "give --port"),
        ("MILLRACE_API_HOST", "127.0.0.1 only"),
        ("MILLRACE_WRITER_METRICS_PORT", "stack.json"),
        ("MILLRACE_GPU_METRICS_PORT", "stack.json"),
        ("MILLRACE_ENGINE_KIND", "give --engine"),
        ("MILLRACE_BATCHER_JOB_CLASS", "each class"),
    ],
)
def test_reserved_variable_is_refused(
    name: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "simulated" if name == "MILLRACE_ENGINE_KIND" else "1")

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert name in done.stderr
    assert told in done.stderr
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("given", "wanted"), [([], "7"), (["--simulated-concurrency", "9"], "9")], ids=str
)
def test_engine_options_override_variables(
    given: list[str], wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[StackOptions] = []
    monkeypatch.setenv("MILLRACE_ENGINE_CONCURRENCY", "7")
    monkeypatch.setenv("MILLRACE_ENGINE_SIMULATED_LATENCY_MS", "5")
    monkeypatch.setattr("cli.stack.up_command._run", lambda options, _: asked.append(options))

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), *given])

    assert done.exit_code == 0, done.output
    assert asked[0].engine_env["MILLRACE_ENGINE_CONCURRENCY"] == wanted
    assert asked[0].engine_env["MILLRACE_ENGINE_SIMULATED_LATENCY_MS"] == "5.0"


KAFKA = {"MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
DATABASE = {"MILLRACE_DATABASE_URL": "postgresql://db/jobs"}
S3 = {"MILLRACE_OBJECTS_KIND": "s3", "MILLRACE_S3_BUCKET": "jobs"}
FOLDER = {"MILLRACE_OBJECTS_ROOT": "/objects"}
OWN_FOLDER = {"MILLRACE_OBJECTS_KIND": "local"}


@pytest.mark.parametrize(
    "named", [{}, OWN_FOLDER, KAFKA | DATABASE | S3, KAFKA | DATABASE | FOLDER], ids=list
)
def test_complete_installation_is_accepted(named: dict[str, str]) -> None:
    refuse_reserved_variables(named)


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        (KAFKA, ["MILLRACE_DATABASE_URL", "MILLRACE_OBJECTS_ROOT"]),
        (DATABASE, ["MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_OBJECTS_ROOT"]),
        (S3, ["MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_DATABASE_URL"]),
        (FOLDER, ["MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_DATABASE_URL"]),
        (KAFKA | DATABASE | OWN_FOLDER, ["MILLRACE_OBJECTS_ROOT"]),
        (KAFKA | S3, ["MILLRACE_DATABASE_URL"]),
        (DATABASE | FOLDER, ["MILLRACE_KAFKA_BOOTSTRAP_SERVERS"]),
    ],
    ids=str,
)
def test_partial_installation_is_refused(
    named: dict[str, str], missing: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in named.items():
        monkeypatch.setenv(name, value)

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])

    assert done.exit_code == ExitCode.USAGE, done.output
    _, told = done.stderr.split(": set ")
    assert [name for name in missing if name not in told] == []
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", OUTSIDE)
def test_demo_refuses_external_services(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, OUTSIDE[name])
    monkeypatch.setattr("cli.demo.demo_command._demo", lambda *_: pytest.fail("it began"))

    done = CliRunner().invoke(app, ["demo", "--out", str(tmp_path / "out")])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert f"unset {name}:" in done.stderr
    assert not (tmp_path / "out").exists()


def test_external_object_store_is_used(tmp_path: Path) -> None:
    def objects(env: dict[str, str]) -> str | None:
        return shared_env("k", "d", tmp_path, env).get("MILLRACE_OBJECTS_ROOT")

    assert objects({}) == objects({"MILLRACE_OBJECTS_KIND": "local"}) == str(tmp_path / "objects")
    assert objects({"MILLRACE_OBJECTS_KIND": "s3"}) is None
    assert objects({"MILLRACE_OBJECTS_ROOT": "/elsewhere"}) is None
