"""Goal: the batch commands run and control jobs: data on stdout, messages on stderr, exit codes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.support.stacks import Stack
from tests.support.until import until

pytestmark = pytest.mark.timeout(300)

CHAT = "/v1/chat/completions"
COMMAND_S_MAX = 60


def millrace(env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> Result:
    """Run `millrace batch …` in this process, which has imported it already."""
    return CliRunner().invoke(app, ["batch", *arguments], env=env, input=stdin)


@contextmanager
def shell(env: Mapping[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `millrace …` in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "cli.main", *arguments],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A test run in the background ignores SIGINT, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(model: str, count: int, first: int = 0) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": "Hello."}]}
    requests = (
        {"custom_id": f"item-{n}", "method": "POST", "url": CHAT, "body": body}
        for n in range(first, first + count)
    )
    return b"".join(json.dumps(request).encode() + b"\n" for request in requests)


def custom_ids(content: bytes) -> list[str]:
    return [json.loads(line)["custom_id"] for line in content.splitlines()]


def output_of(env: Mapping[str, str], *arguments: str, stdin: bytes = b"") -> str:
    answer = millrace(env, *arguments, stdin=stdin)
    assert answer.exit_code == ExitCode.OK, answer.stderr
    return answer.stdout.strip()


def submitted(env: Mapping[str, str], content: bytes, *options: str) -> str:
    return output_of(env, "submit", "-", "--endpoint", CHAT, *options, stdin=content)


def test_submit_waits_and_writes_output_and_errors(
    stack: Stack, env: dict[str, str], tmp_path: Path
) -> None:
    source, output, errors = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "errors.jsonl"))
    source.write_bytes(lines(stack.model, 250))

    done = millrace(
        env,
        *("submit", str(source), "--endpoint", CHAT, "--metadata", "team=search"),
        *("--wait", "--output", str(output), "--errors", str(errors)),
    )

    assert done.exit_code == ExitCode.OK, done.stderr
    job = done.stdout.strip()
    assert job.startswith("batch_")
    assert "250 of 250 succeeded" in done.stderr
    assert "\x1b" not in done.stderr, "no progress bar without a terminal"
    assert custom_ids(output.read_bytes()) == [f"item-{n}" for n in range(250)]
    assert errors.read_bytes() == b""
    assert millrace(env, "results", job).stdout_bytes == output.read_bytes()


def test_json_is_the_batch_object(stack: Stack, env: dict[str, str]) -> None:
    job = submitted(env, lines(stack.model, 3), "--metadata", "team=search", "--deduplicate")
    assert millrace(env, "watch", job, "--quiet").stdout == "completed\n"

    status = json.loads(millrace(env, "status", job, "-o", "json").stdout)
    listed = json.loads(millrace(env, "list", "--limit", "1", "-o", "json").stdout)

    assert (status["object"], status["status"]) == ("batch", "completed")
    assert status["metadata"] == {"team": "search"}
    assert status["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert status["millrace"]["succeeded"] == 3
    assert status["millrace"]["deduplicated_items"] == 2
    assert [batch["id"] for batch in listed] == [job]
    assert job in millrace(env, "status", job).stdout


def test_a_cancelled_job_has_a_line_for_every_item(
    stack: Stack, env: dict[str, str], tmp_path: Path
) -> None:
    job = submitted(env, lines(stack.model, 8000))
    early = millrace(env, "results", job)

    cancelled = millrace(env, "cancel", job)
    watched = millrace(env, "watch", job, "--timeout", "150")
    output, errors = tmp_path / "out.jsonl", tmp_path / "errors.jsonl"
    fetched = millrace(env, "results", job, "-o", str(output), "--errors", str(errors))

    assert early.exit_code == ExitCode.CONFLICT
    assert cancelled.stdout in ("cancelling\n", "cancelled\n")
    assert (watched.exit_code, watched.stdout) == (ExitCode.JOB_FAILED, "cancelled\n")
    assert fetched.exit_code == ExitCode.JOB_FAILED
    all_ids = custom_ids(output.read_bytes()) + custom_ids(errors.read_bytes())
    assert sorted(all_ids) == sorted(f"item-{n}" for n in range(8000))


def test_watch_ends_on_a_timeout_or_signal_and_the_job_continues(
    stack: Stack, env: dict[str, str]
) -> None:
    job = submitted(env, lines(stack.model, 10), "--no-seal")  # it waits for more files

    assert millrace(env, "watch", job, "--timeout", "0.5").exit_code == ExitCode.TIMEOUT
    with shell(env, "batch", "watch", job) as watching:
        assert watching.stderr is not None
        assert job.encode() in watching.stderr.readline()
        watching.send_signal(signal.SIGINT)
        _, message = watching.communicate(timeout=COMMAND_S_MAX)

    assert watching.returncode == ExitCode.INTERRUPTED
    assert b"Traceback" not in message
    assert stack.client.batches.cancel(job).status == "cancelling"
    until(
        lambda: stack.client.batches.retrieve(job).status == "cancelled", "the cancellation", 90.0
    )


def test_a_job_is_paused_prioritised_and_resumed(stack: Stack, env: dict[str, str]) -> None:
    job = submitted(env, lines(stack.model, 4000), "--priority", "2")
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
    job = submitted(env, lines(stack.model, 10), "--no-seal")
    assert output_of(env, "append", job, "-", stdin=lines(stack.model, 5, first=10)).startswith(
        "file-"
    )
    assert "waits for more files" in output_of(env, "status", job)
    assert output_of(env, "seal", job) in {"validating", "in_progress", "finalizing"}
    output = output_of(env, "results", job) if output_of(env, "watch", job) == "completed" else ""
    assert len(output.splitlines()) == 15


def test_a_job_stops_at_its_failure_budget(stack: Stack, env: dict[str, str]) -> None:
    bad = lines(stack.model, 3000).replace(b'[{"role": "user", "content": "Hello."}]', b'"no"')
    job = submitted(env, bad, "--max-failed-items", "5")
    ended = millrace(env, "watch", job)
    assert (ended.stdout.strip(), ended.exit_code) == ("cancelled", ExitCode.JOB_FAILED)
    assert "failure_budget" in output_of(env, "status", job)


def test_update_without_changes_is_a_usage_error(env: dict[str, str]) -> None:
    assert millrace(env, "update", "batch_1").exit_code == ExitCode.USAGE
