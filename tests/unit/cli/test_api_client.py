"""Goal: requests are those that options name; a wrong URL, key or id is one error line."""

import json

import openai
import pytest
from typer.testing import CliRunner

from cli.api_client import READ_TIMEOUT_S, api_base, checked_key, connect, with_time_limit
from cli.exits import ExitCode, KeyMissingError
from cli.main import app
from tests.unit.cli.scripted_server import Answer, millrace, serving


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_api_base_ends_with_v1(url: str) -> None:
    assert api_base(url) == "http://h:1/v1"


URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "key", "message"),
    [
        *(
            (url, "sk-none", "give http://HOST:PORT")
            for url in (
                *("foo", "", "http://", "https:///x", "ftp://h", "http://h:port", "http://h:99999"),
                *("http://h\x01:1", "http://h\n:1", "http://h h:1", "http://[::1:1", "http://:1"),
            )
        ),
        *(
            (URL, key, "contains characters that no key has")
            for key in ("sk-…", "sk-1\nsk-2", "sk-\x1b")
        ),
    ],
)
def test_invalid_url_or_key_is_wrong_usage(url: str, key: str, message: str) -> None:
    for command in (["batch", "list"], ["chat", "-p", "hello"], ["bench-online"]):
        done = CliRunner().invoke(app, [*command, "--url", url, "--key", key])

        assert done.exit_code == ExitCode.USAGE, done.output
        assert message in " ".join(done.stderr.split())


@pytest.mark.parametrize("text", ["sk-1", " sk-1", "sk-1\n", "sk-1\r\n"])
def test_key_is_stripped_and_a_blank_one_is_missing(text: str) -> None:
    assert checked_key(text) == "sk-1"
    with pytest.raises(KeyMissingError):
        checked_key(text.replace("sk-1", ""))


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8", "text/plain", ""])
@pytest.mark.parametrize(
    "command",
    [("batch", "status", "batch_1"), ("batch", "items", "batch_1"), ("dlq", "list")],
    ids=" ".join,
)
def test_response_of_another_server_names_it(kind: str, command: tuple[str, ...]) -> None:
    with serving(Answer(b"<html>Welcome!</html>", kind=kind)) as server:
        done = millrace(server.url, *command)

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.startswith(f"millrace: {server.url} is not a Millrace API.")
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [[], "hello", None, {}, {"status": "ok"}, b"<no json>"])
@pytest.mark.parametrize("command", [("batch", "status", "batch_1"), ("batch", "list")])
def test_json_of_another_server_is_one_error_line(body: object, command: tuple[str, ...]) -> None:
    with serving(Answer(body)) as server:
        done = millrace(server.url, *command)

    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr.startswith(f"millrace: {server.url} is not a Millrace API.")
    assert done.stderr.count("\n") == 1


def test_read_timeout_is_a_minute() -> None:
    timeout = connect(URL, "sk-1").timeout

    assert isinstance(timeout, openai.Timeout)
    assert timeout.read == READ_TIMEOUT_S
    assert timeout.connect == 5


@pytest.mark.parametrize(
    ("left_s", "retries", "timeout_s"),
    [
        (float("inf"), 2, READ_TIMEOUT_S),
        (3 * READ_TIMEOUT_S, 2, READ_TIMEOUT_S),
        (1.5 * READ_TIMEOUT_S, 2, READ_TIMEOUT_S / 2),
        (20, 2, 20 / 3),
        (-5, 2, 1),
    ],
)
def test_time_limit_bounds_all_attempts(left_s: float, retries: int, timeout_s: float) -> None:
    client = with_time_limit(connect(URL, "sk-1"), left_s)

    assert client.max_retries == retries
    assert isinstance(client.timeout, openai.Timeout)
    assert client.timeout.read == timeout_s


COMMANDS = [
    *(("batch", verb) for verb in ("status", "watch", "results", "items", "stream", "audit")),
    *(("batch", verb) for verb in ("cancel", "delete", "pause", "resume", "seal")),
    ("dlq", "show"),
    ("jobs", "show"),
    ("jobs", "cancel"),
    ("jobs", "delete"),
    ("webhooks", "deliveries"),
    ("webhooks", "replay"),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("text", ["", ".", ".."])
def test_invalid_id_is_wrong_usage(command: tuple[str, ...], text: str) -> None:
    done = millrace(URL, *command, text)

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


def test_a_cancelled_request_is_never_deleted() -> None:
    with serving(Answer({"id": "job_1", "object": "job", "status": "cancelling"})) as server:
        done = millrace(server.url, "jobs", "cancel", "job_1")

    assert done.exit_code == ExitCode.OK
    assert server.seen == ["DELETE /v1/jobs/job_1?cancel_only=true"]


def test_only_a_request_that_has_ended_is_deleted() -> None:
    job = {"id": "job_1", "object": "job", "status": "completed"}
    with serving(Answer(job)) as server:
        done = millrace(server.url, "jobs", "delete", "job_1")
    assert (done.exit_code, done.stdout) == (ExitCode.OK, "deleted\n")
    assert server.seen == ["GET /v1/jobs/job_1", "DELETE /v1/jobs/job_1"]

    with serving(Answer(job | {"status": "in_progress"})) as server:
        done = millrace(server.url, "jobs", "delete", "job_1")
    assert done.exit_code == ExitCode.CONFLICT
    assert server.seen == ["GET /v1/jobs/job_1"]


def test_delete_sends_one_request_and_confirms() -> None:
    deleted = {"id": "batch_1", "object": "batch", "deleted": True}
    with serving(Answer(deleted)) as server:
        done = millrace(server.url, "batch", "delete", "batch_1")

    assert done.stdout == "deleted\n"
    assert server.seen == ["DELETE /v1/batches/batch_1"]


def test_event_types_are_stripped() -> None:
    created = {"id": "whe_1", "object": "webhook_endpoint", "signing_secret": "whsec_1"}
    with serving(Answer(created)) as server:
        millrace(server.url, "webhooks", "create", "https://example.com", "--events", "a, b")

    assert json.loads(server.bodies[0])["event_types"] == ["a", "b"]
