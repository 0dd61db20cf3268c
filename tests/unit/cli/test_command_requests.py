"""Goal: commands send the request that their ids and options name."""

import json

import pytest

from cli.exits import ExitCode
from tests.unit.cli.scripted_server import Answer, millrace, serving

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
    done = millrace("http://127.0.0.1:1", *command, text)

    assert done.exit_code == ExitCode.USAGE, done.output
    assert "this is not an id" in done.stderr


@pytest.mark.parametrize(
    ("verb", "request_line"),
    [
        ("pause", "POST /v1/batches/..%2Ffiles%2Ffile-1%3Fx/pause"),
        ("delete", "DELETE /v1/batches/..%2Ffiles%2Ffile-1%3Fx"),
        ("audit", "GET /v1/batches/..%2Ffiles%2Ffile-1%3Fx/audit"),
        ("status", "GET /v1/batches/..%2Ffiles%2Ffile-1%3Fx"),
        ("cancel", "POST /v1/batches/..%2Ffiles%2Ffile-1%3Fx/cancel"),
    ],
)
def test_id_is_one_path_segment(verb: str, request_line: str) -> None:
    refusal = {"error": {"message": "No such batch.", "code": "batch_not_found", "param": None}}
    with serving(Answer(refusal, status=404)) as server:
        done = millrace(server.url, "batch", verb, "../files/file-1?x")

    assert done.exit_code == ExitCode.NOT_FOUND
    assert server.seen == [request_line]


def test_event_types_are_stripped() -> None:
    created = {"id": "whe_1", "object": "webhook_endpoint", "signing_secret": "whsec_1"}
    with serving(Answer(created)) as server:
        done = millrace(server.url, "webhooks", "create", "https://example.com", "--events", "a, b")

    assert done.exit_code == ExitCode.OK, done.output
    assert json.loads(server.bodies[0])["event_types"] == ["a", "b"]


def test_delete_sends_one_request_and_confirms() -> None:
    deleted = {"id": "batch_1", "object": "batch", "deleted": True}
    with serving(Answer(deleted)) as server:
        done = millrace(server.url, "batch", "delete", "batch_1")

    assert done.stdout == "deleted\n"
    assert server.seen == ["DELETE /v1/batches/batch_1"]
