"""Goal: an invalid URL or key is reported in one line, and calls have timeouts."""

import openai
import pytest
from typer.testing import CliRunner

from cli.client import RESPONSE_TIMEOUT_S, api_base, clean_key, connect, with_time_limit
from cli.exits import ExitCode, KeyMissingError
from cli.main import app
from tests.unit.cli.scripted_server import Answer, serving


@pytest.mark.parametrize("url", ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"])
def test_a_base_url_ends_with_the_version(url: str) -> None:
    assert api_base(url) == "http://h:1/v1"


@pytest.mark.parametrize(
    "url",
    [
        *("foo", "", "http://", "https:///x", "ftp://h", "http://h:port", "http://h:99999"),
        *("http://h\x01:1", "http://h\n:1", "http://h h:1", "http://[::1:1", "http://:1"),
    ],
)
def test_an_invalid_url_is_a_usage_error(url: str) -> None:
    for command in (["batch", "list"], ["chat", "-p", "hello"], ["bench-online"]):
        done = CliRunner().invoke(app, [*command, "--url", url, "--key", "sk-none"])

        assert done.exit_code == ExitCode.USAGE, done.output
        assert "http://HOST:PORT" in " ".join(done.stderr.split())


@pytest.mark.parametrize("text", ["sk-1", " sk-1", "sk-1\n", "sk-1\r\n"])
def test_white_space_around_a_key_is_removed(text: str) -> None:
    assert clean_key(text) == "sk-1"


@pytest.mark.parametrize("text", ["", " ", "\r\n"])
def test_an_empty_key_is_missing(text: str) -> None:
    with pytest.raises(KeyMissingError):
        clean_key(text)


@pytest.mark.parametrize("key", ["sk-…", "sk-1\nsk-2", "sk-\x1b"])
def test_a_key_with_invalid_characters_is_a_usage_error(key: str) -> None:
    env = {"MILLRACE_URL": "http://127.0.0.1:1", "MILLRACE_KEY": key}
    for command in (["batch", "list"], ["chat", "-p", "hello"], ["bench-online"]):
        done = CliRunner().invoke(app, command, env=env)

        assert done.exit_code == ExitCode.USAGE, done.output
        assert "holds characters that are not allowed in keys" in " ".join(done.stderr.split())


@pytest.mark.parametrize("kind", ["text/html", "text/html; charset=utf-8", "text/plain", ""])
@pytest.mark.parametrize(
    "command",
    [("batch", "status", "batch_1"), ("batch", "items", "batch_1"), ("dlq", "list")],
    ids=" ".join,
)
def test_a_server_that_is_not_millrace_is_named(kind: str, command: tuple[str, ...]) -> None:
    with serving(Answer(b"<html>Welcome!</html>", kind=kind)) as server:
        env = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1"}
        done = CliRunner().invoke(app, list(command), env=env)

    assert done.exit_code == ExitCode.FAILED
    assert done.stderr.startswith(f"millrace: {server.url} is not a Millrace API.")
    assert len(server.seen) == 1


@pytest.mark.parametrize("body", [[], "hello", None, {}, {"status": "ok"}, b"<no json>"])
@pytest.mark.parametrize("command", [("batch", "status", "batch_1"), ("batch", "list")])
def test_json_of_another_server_is_reported_in_one_line(
    body: object, command: tuple[str, ...]
) -> None:
    with serving(Answer(body)) as server:
        env = {"MILLRACE_URL": server.url, "MILLRACE_KEY": "sk-1"}
        done = CliRunner().invoke(app, list(command), env=env)

    assert (done.exit_code, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr.startswith(f"millrace: {server.url} is not a Millrace API.")
    assert done.stderr.count("\n") == 1


def test_a_call_has_a_read_timeout() -> None:
    timeout = connect("http://127.0.0.1:1", "sk-1").timeout

    assert isinstance(timeout, openai.Timeout)
    assert timeout.read == RESPONSE_TIMEOUT_S
    assert timeout.connect == 5


@pytest.mark.parametrize(
    ("left_s", "retries", "silence_s"),
    [
        (float("inf"), 2, RESPONSE_TIMEOUT_S),
        (3 * RESPONSE_TIMEOUT_S, 2, RESPONSE_TIMEOUT_S),
        (1.5 * RESPONSE_TIMEOUT_S, 2, RESPONSE_TIMEOUT_S / 2),
        (20, 2, 20 / 3),
        (-5, 2, 1),
    ],
)
def test_a_calls_tries_share_the_time_left(left_s: float, retries: int, silence_s: float) -> None:
    client = with_time_limit(connect("http://127.0.0.1:1", "sk-1"), left_s)

    assert client.max_retries == retries
    assert isinstance(client.timeout, openai.Timeout)
    assert client.timeout.read == silence_s
