"""Goal: commands call models: the answer on stdout, messages on stderr, exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.support.stacks import Stack, await_true, running_stack

pytestmark = pytest.mark.timeout(300)

COMMAND_S_MAX = 60


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose answers take a second and 20 ms a token, so that calls last for a while."""
    options = ("--simulated-latency-ms", "1000", "--simulated-token-ms", "20")
    with running_stack(tmp_path_factory.mktemp("chat"), *options) as running:
        yield running


def millrace(env: dict[str, str], *arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), env=env, input=stdin)


def in_background(stack: Stack, max_tokens: int = 4) -> str:
    """Start a background call and return the job's id."""
    with stack.client as client:
        answer = client.chat.completions.with_raw_response.create(
            model=stack.model,
            messages=[{"role": "user", "content": "Hello."}],
            max_tokens=max_tokens,
            extra_body={"background": True},
        )
        assert answer.http_response.status_code == 202
        return str(json.loads(answer.text)["id"])


def test_only_the_answer_is_on_stdout(stack: Stack, env: dict[str, str]) -> None:
    done = millrace(env, "chat", "--prompt", "Hello.", "--max-tokens", "6")

    assert done.exit_code == ExitCode.OK
    assert done.stdout.startswith("Simulated")
    assert done.stdout.endswith("\n")
    assert "6 tokens in" in done.stderr
    quiet = millrace(env, "chat", "-q", "--model", stack.model, stdin="Hello.")
    assert quiet.stdout.startswith("Simulated")
    assert quiet.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--model", "unknown"], ExitCode.NOT_FOUND, "model"),
        (["--key", "sk-wrong"], ExitCode.AUTH, "key"),
        (["--url", "http://127.0.0.1:1", "--model", "m"], ExitCode.FAILED, "Cannot reach"),
        (["--timeout", "0.001"], ExitCode.TIMEOUT, "time"),
    ],
)
def test_a_failed_call_has_a_message_and_an_exit_code(
    env: dict[str, str], arguments: list[str], code: ExitCode, message: str
) -> None:
    failed = millrace(env, "chat", "--prompt", "Hello.", *arguments)

    assert failed.exit_code == code
    assert failed.stdout == ""
    assert failed.stderr.startswith("millrace: ")
    assert message in failed.stderr
    assert len(failed.stderr.splitlines()) == 1


def test_an_interrupted_answer_ends_at_once(stack: Stack, env: dict[str, str]) -> None:
    arguments = ["--prompt", "Hello.", "--model", stack.model, "--max-tokens", "5000"]
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", "chat", *arguments],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.read(9) == b"Simulated"
            started_s = time.monotonic()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=COMMAND_S_MAX)
        finally:
            process.kill()
    assert process.returncode == ExitCode.INTERRUPTED
    assert time.monotonic() - started_s < 10


@pytest.mark.parametrize("form", ["--unary", "--stream"])
def test_bench_online_measures_calls_and_latencies(env: dict[str, str], form: str) -> None:
    arguments = ["bench-online", form, "--clients", "3", "--seconds", "5", "-o", "json"]
    done = millrace(env, *arguments)

    assert done.exit_code == ExitCode.OK, done.stderr
    found = json.loads(done.stdout)
    assert found["calls"] > 3
    assert found["errors"] == {}
    assert 1000 <= found["latency_ms"]["p50"] <= found["latency_ms"]["p99"]
    assert (form == "--stream") == ("first_piece_ms" in found)


def test_bench_online_fails_without_a_success(env: dict[str, str]) -> None:
    done = millrace(env, "bench-online", "--model", "unknown", "--seconds", "1", "-o", "json")

    assert done.exit_code == ExitCode.FAILED
    assert list(json.loads(done.stdout)["errors"]) == ["404 model_not_found"]
    unreachable = millrace(env, "bench-online", "--model", "m", "--url", "http://127.0.0.1:1")
    assert unreachable.exit_code == ExitCode.FAILED
    assert "Cannot reach http://127.0.0.1:1" in unreachable.stderr


def test_a_background_call_is_shown_with_its_answer(stack: Stack, env: dict[str, str]) -> None:
    job = in_background(stack)

    def completed() -> bool:
        shown = millrace(env, "jobs", "show", job, "-o", "json")
        return bool(json.loads(shown.stdout)["status"] == "completed")

    await_true(completed, "the job's answer")
    assert "HTTP 200" in millrace(env, "jobs", "show", job).stdout
    assert millrace(env, "jobs", "cancel", job).exit_code != ExitCode.OK
    assert millrace(env, "jobs", "show", "job_none").exit_code == ExitCode.NOT_FOUND


def test_a_background_call_is_cancelled(stack: Stack, env: dict[str, str]) -> None:
    job = in_background(stack, max_tokens=5000)

    cancelled = millrace(env, "jobs", "cancel", job)

    assert cancelled.exit_code == ExitCode.OK
    assert "cancel" in cancelled.stdout

    def is_cancelled() -> bool:
        shown = millrace(env, "jobs", "show", job, "-o", "json")
        return bool(json.loads(shown.stdout)["status"] == "cancelled")

    await_true(is_cancelled, "the cancellation")


def test_keys_are_listed_without_their_secrets(stack: Stack) -> None:
    data = ["--data", str(stack.data)]
    (listed,) = json.loads(millrace({}, "keys", "list", *data, "-o", "json").stdout)

    assert listed["tenant"] == "default"
    assert stack.key.endswith(listed["hint"])
    table = millrace({}, "keys", "list", *data).stdout
    assert listed["id"] in table
    assert stack.key not in table
