"""Goal: an id on the command line is one path segment and never another route."""

import json

import pytest
from typer.testing import CliRunner

from cli.exits import ExitCode
from cli.main import app
from tests.unit.cli.scripted_server import Answer, serving

COMMANDS = [
    *(("batch", verb) for verb in ("status", "watch", "results", "items", "stream", "audit")),
    *(("batch", verb) for verb in ("cancel", "delete", "pause", "resume", "seal")),
    ("dlq", "show"),
    ("jobs", "show"),
    ("jobs", "cancel"),
    ("webhooks", "deliveries"),
    ("webhooks", "replay"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", ["", ".", ".."])
def test_invalid_id_is_wrong_usage(command: tuple[str, ...], text: str) -> None:
    env = {"MILLRACE_URL": "http://127.0.0.1:1", "MILLRACE_KEY": "sk-1"}
    done = CliRunner().invoke(app, [*command, text], env=env)

    assert done.exit_code == ExitCode.USAGE, done.output
    assert "this is not an id" in done.stderr


@pytest.mark.parametrize(
    ("verb", "asked"),
    [
        ("pause", "POST /v1/batches/..%2Ffiles%2Ffile-1%3Fx/pause"),
        ("delete", "DELETE /v1/batches/..%2Ffiles%2Ffile-1%3Fx"),
        ("audit", "GET /v1/batches/..%2Ffiles%2Ffile-1%3Fx/audit"),
        ("status", "GET /v1/batches/..%2Ffiles%2Ffile-1%3Fx"),
        ("cancel", "POST /v1/batches/..%2Ffiles%2Ffile-1%3Fx/cancel"),
    ],
)
def test_id_is_one_path_segment(verb: str, asked: str) -> None:
    refusal = {"error": {"message": "No such batch.", "code": "batch_not_found", "param": None}}
    with serving(Answer(refusal, status=404)) as server:
        env = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1"}
        done = CliRunner().invoke(app, ["batch", verb, "../files/file-1?x"], env=env)

    assert done.exit_code == ExitCode.NOT_FOUND
    assert server.seen == [asked]


def test_event_types_are_stripped() -> None:
    made = {"id": "whe_1", "object": "webhook_endpoint", "signing_secret": "whsec_1"}
    with serving(Answer(made)) as server:
        env = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1"}
        arguments = ["webhooks", "create", "https://example.com", "--events", "a, b"]
        done = CliRunner().invoke(app, arguments, env=env)

    assert done.exit_code == ExitCode.OK, done.output
    assert json.loads(server.bodies[0])["event_types"] == ["a", "b"]
