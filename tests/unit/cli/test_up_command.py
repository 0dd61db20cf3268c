"""Goal: invalid options of `up` fail as wrong usage before anything starts."""

import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app
from cli.stack.embedded_stack import StackOptions
from cli.stack.processes.role_children import (
    refuse_reserved_variables,
    shared_env,
)
from cli.stack.up_command import engine_options
from core.errors import SettingsError

KAFKA = {"MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
DATABASE = {"MILLRACE_DATABASE_URL": "postgresql://elsewhere/millrace"}
S3 = {"MILLRACE_OBJECTS_KIND": "s3"}
FOLDER = {"MILLRACE_OBJECTS_ROOT": "/elsewhere"}
OWN_FOLDER = {"MILLRACE_OBJECTS_KIND": "local"}
EXTERNAL = KAFKA | DATABASE | S3 | FOLDER
"""Variables that name external services."""


@pytest.fixture(autouse=True)
def own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not change the logging and the signal handlers of the test process."""
    monkeypatch.setattr("cli.stack.up_command.configure_logs", lambda _: None)
    monkeypatch.setattr("cli.stack.up_command.stop_on_signals", threading.Event)
    for name in EXTERNAL:  # set where tests use external services
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("arguments", "message"),
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
def test_invalid_option_is_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    data = tmp_path / "data"

    done = CliRunner().invoke(app, ["up", "--data", str(data), *arguments])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""
    assert not data.exists()


def test_uncreatable_data_folder_is_one_error_line() -> None:
    done = CliRunner().invoke(app, ["up", "--data", "/proc/none"])

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr == "millrace: /proc/none: No such file or directory\n"


@pytest.mark.parametrize(
    ("options", "concurrency"), [([], "7"), (["--simulated-concurrency", "9"], "9")], ids=str
)
def test_engine_options_override_variables(
    options: list[str], concurrency: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[StackOptions] = []
    monkeypatch.setenv("MILLRACE_ENGINE_CONCURRENCY", "7")
    monkeypatch.setenv("MILLRACE_ENGINE_SIMULATED_LATENCY_MS", "5")
    monkeypatch.setattr(
        "cli.stack.up_command._run", lambda stack_options, _: started.append(stack_options)
    )

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data"), *options])

    assert done.exit_code == 0, done.output
    assert started[0].engine_env["MILLRACE_ENGINE_CONCURRENCY"] == concurrency
    assert started[0].engine_env["MILLRACE_ENGINE_SIMULATED_LATENCY_MS"] == "5.0"


@pytest.mark.parametrize(
    "named", [{}, OWN_FOLDER, KAFKA | DATABASE | S3, KAFKA | DATABASE | FOLDER], ids=list
)
def test_complete_installation_is_accepted(named: dict[str, str]) -> None:
    refuse_reserved_variables(named)


@pytest.mark.parametrize(
    ("variables", "parts"),
    [
        ({"MILLRACE_API_PORT": "1"}, ["MILLRACE_API_PORT: give --port"]),
        ({"MILLRACE_API_HOST": "1"}, ["MILLRACE_API_HOST: ", "127.0.0.1 only"]),
        ({"MILLRACE_WRITER_METRICS_PORT": "1"}, ["MILLRACE_WRITER_METRICS_PORT: ", "stack.json"]),
        ({"MILLRACE_GPU_METRICS_PORT": "1"}, ["MILLRACE_GPU_METRICS_PORT: ", "stack.json"]),
        ({"MILLRACE_ENGINE_KIND": "simulated"}, ["MILLRACE_ENGINE_KIND: give --engine"]),
        ({"MILLRACE_BATCHER_JOB_CLASS": "1"}, ["MILLRACE_BATCHER_JOB_CLASS: ", "each class"]),
        ({"MILLRACE_KAFKA_SESSION_TIMEOUT_S": "long"}, ["MILLRACE_KAFKA_SESSION_TIMEOUT_S"]),
        (KAFKA, [": set MILLRACE_DATABASE_URL", "MILLRACE_OBJECTS_ROOT"]),
        (DATABASE, [": set MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_OBJECTS_ROOT"]),
        (S3, [": set MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_DATABASE_URL"]),
        (FOLDER, [": set MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "MILLRACE_DATABASE_URL"]),
        (KAFKA | DATABASE | OWN_FOLDER, [": set MILLRACE_OBJECTS_ROOT"]),
        (KAFKA | S3, [": set MILLRACE_DATABASE_URL"]),
        (DATABASE | FOLDER, [": set MILLRACE_KAFKA_BOOTSTRAP_SERVERS"]),
    ],
    ids=str,
)
def test_reserved_invalid_and_partial_variables_are_refused(
    variables: dict[str, str], parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    done = CliRunner().invoke(app, ["up", "--data", str(tmp_path / "data")])

    assert done.exit_code == ExitCode.USAGE, done.output
    assert [part for part in parts if part not in done.stderr] == []
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", EXTERNAL)
def test_demo_refuses_external_services(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, EXTERNAL[name])
    monkeypatch.setattr("cli.demo.demo_command._demo", lambda *_: pytest.fail("it started"))

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


def test_options_become_variables_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = ["vllm_tool_call_parser=hermes", "VLLM_DTYPE=float32", "upstream_api_key=a=b"]
    assert engine_options([*texts, "vllm_chat_template=chat.jinja"]) == {
        "MILLRACE_ENGINE_VLLM_TOOL_CALL_PARSER": "hermes",
        "MILLRACE_ENGINE_VLLM_DTYPE": "float32",
        "MILLRACE_ENGINE_UPSTREAM_API_KEY": "a=b",
        "MILLRACE_ENGINE_VLLM_CHAT_TEMPLATE": str(tmp_path / "chat.jinja"),
    }


@pytest.mark.parametrize("text", ["tool_parser=hermes", "vllm_dtype", "", "model_name=m", "=x"])
def test_unknown_option_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="vllm_tool_call_parser"):
        engine_options([text])


@pytest.mark.parametrize("name", ["MODEL_VERSION", "MODEL_PATH", "UNVERIFIED_UNTIL"])
def test_up_names_the_model_itself(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        refuse_reserved_variables({f"MILLRACE_ENGINE_{name}": "1"})
    with pytest.raises(SettingsError, match=name.lower()):
        engine_options([f"{name.lower()}=1"])
