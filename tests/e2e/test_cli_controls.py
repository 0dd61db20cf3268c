"""Goal: the batch commands control running jobs."""

import json
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.support.stacks import Stack

pytestmark = pytest.mark.timeout(300)

CHAT = "/v1/chat/completions"


@pytest.fixture
def env(stack: Stack) -> dict[str, str]:
    """The environment of a user of `stack`."""
    return {"MILLRACE_URL": stack.url, "MILLRACE_KEY": stack.key}


def millrace(env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["batch", *arguments], env=env, input=stdin)


def output_of(env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> str:
    answer = millrace(env, *arguments, stdin=stdin)
    assert answer.exit_code == ExitCode.OK, answer.stderr
    return answer.stdout.strip()


def lines(model: str, first: int, count: int) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello."}]}
    requests = (
        {"custom_id": f"item-{n}", "method": "POST", "url": CHAT, "body": body}
        for n in range(first, first + count)
    )
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def test_a_job_is_paused_prioritised_and_resumed(stack: Stack, env: dict[str, str]) -> None:
    content = lines(stack.model, 0, 4000)
    job = output_of(env, "submit", "-", "--endpoint", CHAT, "--priority", "2", stdin=content)
    assert output_of(env, "pause", job) == "paused"
    assert dict(row.split(None, 1) for row in output_of(env, "status", job).splitlines())["paused"]
    changed = output_of(env, "update", job, "--completion-window", "2h", "--priority", "9")
    assert changed.startswith("expires 20")
    assert changed.endswith(" priority 9")
    assert output_of(env, "resume", job) in {"validating", "in_progress"}
    assert output_of(env, "watch", job) == "completed"
    late = millrace(env, "pause", job)
    assert late.exit_code == ExitCode.CONFLICT
    assert "Cannot pause a batch with status 'completed'" in late.stderr


def test_files_are_appended_until_the_job_is_sealed(stack: Stack, env: dict[str, str]) -> None:
    content = lines(stack.model, 0, 10)
    job = output_of(env, "submit", "-", "--endpoint", CHAT, "--no-seal", stdin=content)
    assert output_of(env, "append", job, "-", stdin=lines(stack.model, 10, 5)).startswith("file-")
    assert "waits for more files" in output_of(env, "status", job)
    assert output_of(env, "seal", job) in {"validating", "in_progress", "finalizing"}
    output = output_of(env, "results", job) if output_of(env, "watch", job) == "completed" else ""
    assert len(output.splitlines()) == 15


def test_a_job_stops_at_its_failure_budget(stack: Stack, env: dict[str, str]) -> None:
    bad = lines(stack.model, 0, 3000).replace(b'[{"role": "user", "content": "Hello."}]', b'"no"')
    job = output_of(env, "submit", "-", "--endpoint", CHAT, "--max-failed-items", "5", stdin=bad)
    ended = millrace(env, "watch", job)
    assert (ended.stdout.strip(), ended.exit_code) == ("cancelled", ExitCode.JOB_FAILED)
    assert "failure_budget" in output_of(env, "status", job)


def test_update_without_changes_is_a_usage_error(env: dict[str, str]) -> None:
    assert millrace(env, "update", "batch_1").exit_code == ExitCode.USAGE
