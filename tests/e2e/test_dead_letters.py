"""Goal: failed items are retried, become dead letters, and run again when redriven with an edit."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cli.exits import ExitCode
from cli.main import app
from tests.e2e.conftest import FAILING_TEXT
from tests.support.job_checks import chat_line, create, ended, lines_of, upload, watch
from tests.support.stacks import Stack

pytestmark = pytest.mark.timeout(300)

POISONED = (3, 40, 41)


def dlq(stack: Stack, *arguments: str) -> Result:
    env = {"MILLRACE_URL": stack.url, "MILLRACE_KEY": stack.key}
    done = CliRunner().invoke(app, ["dlq", *arguments], env=env)
    assert done.exit_code == ExitCode.OK, done.stderr
    return done


def test_items_fail_after_three_attempts_and_succeed_when_edited(
    stack: Stack, tmp_path: Path
) -> None:
    client = stack.client
    lines = [
        chat_line(n, stack.model, text=FAILING_TEXT if n in POISONED else "hello")
        for n in range(60)
    ]
    job = create(client, upload(client, b"".join(lines)))
    done = watch(client, job.id, ended)
    assert done.status == "completed"
    errors = lines_of(client, done.error_file_id)
    assert [line["custom_id"] for line in errors] == [f"item-{n}" for n in POISONED]
    assert {line["response"]["body"]["error"]["code"] for line in errors} == {"simulated_fault"}
    assert len(lines_of(client, done.output_file_id)) == 60 - len(POISONED)

    letters = json.loads(dlq(stack, "list", "--batch", job.id, "-o", "json").stdout)
    assert [(d["index"], d["code"], d["attempts"]) for d in letters] == [
        (n, "simulated_fault", 3) for n in POISONED
    ]
    shown = json.loads(dlq(stack, "show", letters[0]["id"], "-o", "json").stdout)
    assert [tried["attempt"] for tried in shown["history"]] == [1, 2, 3]
    assert "attempt 3" in dlq(stack, "show", letters[0]["id"]).stdout

    edit = tmp_path / "edit.json"
    edit.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    new = dlq(
        stack, "redrive", "--batch", job.id, "--edit", str(edit), "--set", "max_tokens=4"
    ).stdout.strip()
    again = watch(client, new, ended)
    assert (again.status, again.metadata) == ("completed", {"redrive_of": job.id})
    found = lines_of(client, again.output_file_id)
    assert [line["custom_id"] for line in found] == [f"item-{n}" for n in POISONED]
    assert {line["response"]["body"]["usage"]["completion_tokens"] for line in found} <= {
        1, 2, 3, 4,
    }  # fmt: skip
    assert new in dlq(stack, "list").stdout
