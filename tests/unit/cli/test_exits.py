"""Goal: an expected failure has its exit code and one line, whatever the standard streams are."""

import io
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import openai
import pytest
import sqlalchemy.exc
import typer
from typer.testing import CliRunner

from cli.exits import (
    CommandError,
    CommandFailure,
    CommandGroup,
    ExitCode,
    JobStillRunningError,
    KeyMissingError,
    NotFoundError,
    WaitTimeoutError,
    describe_failure,
    exit_codes,
)
from cli.main import app as millrace
from cli.output import prepare_streams, write_json, write_table
from core.errors import MillraceError, SettingsError
from registry.models import InvalidModelError, ModelVersionConflictError
from tenancy.tenants import InvalidTenantNameError, TenantExistsError, TenantNotFoundError
from topics.errors import KafkaUnavailableError

REQUEST = httpx2.Request("GET", "http://127.0.0.1:9/v1/batches/batch_1")


def described(error: Exception) -> CommandFailure:
    failure = describe_failure(error)
    assert failure is not None
    return failure


def refused(status: int, body: object, headers: dict[str, str] | None = None) -> openai.APIError:
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    return openai.APIStatusError("Error code", response=response, body=body)


def stream_error(code: str) -> openai.APIError:
    return openai.APIError("It broke.", REQUEST, body={"code": code})


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (400, None, ExitCode.FAILED),
        (401, None, ExitCode.AUTH),
        (403, None, ExitCode.AUTH),
        (404, None, ExitCode.NOT_FOUND),
        (409, None, ExitCode.CONFLICT),
        (413, None, ExitCode.FAILED),
        (422, None, ExitCode.FAILED),
        (429, None, ExitCode.CONFLICT),
        (500, None, ExitCode.FAILED),
        (503, None, ExitCode.FAILED),
        (504, None, ExitCode.TIMEOUT),
        (400, "batch_ended", ExitCode.CONFLICT),
        (400, "batch_not_open", ExitCode.CONFLICT),
        (400, "batch_sealed", ExitCode.CONFLICT),
        (400, "job_ended", ExitCode.CONFLICT),
        (400, "webhook_endpoint_disabled", ExitCode.CONFLICT),
        (403, "zero_retention", ExitCode.CONFLICT),
        (400, "file_not_found", ExitCode.NOT_FOUND),
        (400, "invalid_value", ExitCode.FAILED),
        (404, "batch_not_found", ExitCode.NOT_FOUND),
        (409, ["of another server"], ExitCode.CONFLICT),
    ],
)
def test_exit_code_follows_the_error_code_or_else_the_status(
    status: int, code: object, exit_code: ExitCode
) -> None:
    body = None if code is None else {"message": "No.", "code": code}
    assert described(refused(status, body)).exit_code is exit_code


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            refused(404, {"message": "No such batch."}, {"x-request-id": "req_7"}),
            "No such batch. (request req_7)",
        ),
        (
            refused(400, {"message": "Supported are /v1/x.", "param": "endpoint"}),
            "endpoint: Supported are /v1/x.",
        ),
        (refused(502, "<html>"), "HTTP 502"),
        (stream_error("stream_interrupted"), "It broke. (stream_interrupted)"),
        (
            MillraceError("It failed.", topic="results", partition=3),
            "It failed. (topic results, partition 3)",
        ),
    ],
    ids=["request id", "parameter", "status", "stream", "facts"],
)
def test_message_has_the_details_of_the_error(error: Exception, message: str) -> None:
    assert described(error).message == message


def test_unreachable_server_is_named() -> None:
    failure = described(openai.APIConnectionError(request=REQUEST))

    assert failure.exit_code is ExitCode.FAILED
    assert "http://127.0.0.1:9" in failure.message


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (openai.APITimeoutError(request=REQUEST), ExitCode.TIMEOUT),
        (stream_error("deadline_exceeded"), ExitCode.TIMEOUT),
        (stream_error("stream_interrupted"), ExitCode.FAILED),
        (httpx2.RemoteProtocolError("cut", request=REQUEST), ExitCode.FAILED),
        (CommandError(), ExitCode.FAILED),
        (NotFoundError(), ExitCode.NOT_FOUND),
        (KeyMissingError(), ExitCode.AUTH),
        (JobStillRunningError(), ExitCode.CONFLICT),
        (WaitTimeoutError(), ExitCode.TIMEOUT),
        (SettingsError("MILLRACE_DATABASE_URL: Field required"), ExitCode.USAGE),
        (TenantExistsError(name="a"), ExitCode.CONFLICT),
        (TenantNotFoundError(name="a"), ExitCode.NOT_FOUND),
        (InvalidTenantNameError(), ExitCode.USAGE),
        (InvalidModelError(name="m"), ExitCode.USAGE),
        (ModelVersionConflictError(name="m"), ExitCode.CONFLICT),
        (KafkaUnavailableError("no broker"), ExitCode.FAILED),
        (sqlalchemy.exc.OperationalError("", None, Exception("refused")), ExitCode.FAILED),
        (sqlalchemy.exc.ProgrammingError("", None, Exception("no table")), ExitCode.FAILED),
        (FileNotFoundError(2, "No such file or directory", "in.jsonl"), ExitCode.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_failure_has_an_exit_code(error: Exception, code: ExitCode) -> None:
    failure = described(error)

    assert failure.exit_code is code
    assert "\n" not in failure.message


@pytest.mark.parametrize("error", [ValueError("defect"), BrokenPipeError(), typer.Exit(6)])
def test_defect_passes(error: Exception) -> None:
    with pytest.raises(type(error)), exit_codes():
        raise error


def test_interrupt_has_an_exit_code() -> None:
    with pytest.raises(typer.Exit) as caught, exit_codes():
        raise KeyboardInterrupt

    assert caught.value.exit_code == ExitCode.INTERRUPTED


def test_command_group_writes_failures_to_stderr_only() -> None:
    app = typer.Typer(cls=CommandGroup)

    @app.callback()
    def group() -> None:
        pass

    @app.command()
    def fail() -> None:
        raise NotFoundError("No such job.")

    result = CliRunner().invoke(app, ["fail"])

    assert result.exit_code == ExitCode.NOT_FOUND
    assert result.stdout == ""
    assert result.stderr == "millrace: No such job.\n"


class DriverError(Exception):
    """An error of the database driver."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("permission denied for table jobs\nmore")
        self.sqlstate = sqlstate


DENIED = "permission denied for table jobs"
SCHEMA_TOO_OLD = "run `python -P -m migrations`"


@pytest.mark.parametrize(
    ("kind", "sqlstate", "message"),
    [
        (sqlalchemy.exc.ProgrammingError, "42P01", SCHEMA_TOO_OLD),
        (sqlalchemy.exc.ProgrammingError, "42703", SCHEMA_TOO_OLD),
        (sqlalchemy.exc.ProgrammingError, "42501", f"Postgres refuses: {DENIED}"),
        # Nothing listens; the server starts or stops; statement timeout; lock timeout; disk full.
        (sqlalchemy.exc.OperationalError, None, f"Postgres does not answer: {DENIED}"),
        (sqlalchemy.exc.OperationalError, "57P03", f"Postgres does not answer: {DENIED}"),
        (sqlalchemy.exc.OperationalError, "57014", f"Postgres took too long: {DENIED}"),
        (sqlalchemy.exc.OperationalError, "55P03", f"Postgres took too long: {DENIED}"),
        (sqlalchemy.exc.OperationalError, "53100", f"Postgres refuses: {DENIED}"),
    ],
)
def test_outdated_unavailable_slow_and_refusing_databases_differ(
    kind: type[sqlalchemy.exc.DBAPIError], sqlstate: str | None, message: str
) -> None:
    failure = described(kind("SELECT", None, DriverError(sqlstate)))

    assert failure.exit_code is ExitCode.FAILED
    assert message in failure.message
    assert "more" not in failure.message


def test_number_out_of_range_is_wrong_usage() -> None:
    arguments = ["tenants", "create", "x", "--stored-bytes-max", "99999999999999999999"]
    done = CliRunner().invoke(millrace, arguments)

    assert done.exit_code == ExitCode.USAGE, done.output


MILLRACE = f"{sys.executable} -m cli.main"


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of bash; $MILLRACE is the command."""
    return subprocess.run(
        ["bash", "-c", command],
        check=False,
        capture_output=True,
        env={**os.environ, "MILLRACE": MILLRACE, **variables},
        timeout=60,
    )


@pytest.mark.parametrize("command", ["topics list -o json", "topics list", "--help"])
def test_full_stdout_fails_the_command(command: str) -> None:
    done = shell(f"$MILLRACE {command} > /dev/full")

    assert done.returncode == ExitCode.FAILED
    assert done.stderr.startswith(b"millrace: ")
    assert done.stderr.endswith(b"No space left on device\n")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("output_format", ["json", "table"])
def test_closed_pipe_ends_the_command_quietly(output_format: str) -> None:
    # The reader of the pipe ends before the command starts.
    done = shell(
        f"exec 3> >(exec true); wait $!; $MILLRACE topics list -o {output_format} >&3; echo $? >&2"
    )

    assert done.stderr == b"1\n"


def test_failure_keeps_its_exit_code_without_stderr() -> None:
    done = shell("$MILLRACE batch list 2> /dev/full", MILLRACE_KEY="")

    assert done.returncode == ExitCode.AUTH


def test_closed_streams_become_dev_null() -> None:
    done = shell("$MILLRACE topics list <&- >&- 2>&-")

    assert done.returncode == ExitCode.OK


def latin_1(monkeypatch: pytest.MonkeyPatch, name: str, content: bytes = b"") -> io.BytesIO:
    """Replace a standard stream by a strict Latin-1 stream; return its buffer."""
    content_bytes = io.BytesIO(content)
    monkeypatch.setattr(sys, name, io.TextIOWrapper(content_bytes, encoding="latin-1"))
    return content_bytes


def test_unencodable_output_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = latin_1(monkeypatch, "stdout")
    prepare_streams()

    write_table(("key",), [("sk-…é",), ("\udcff",)])
    write_json({"emoji": "😀"})
    sys.stdout.flush()

    assert written.getvalue() == (
        b'KEY\nsk-\\u2026\xe9\n\\udcff\n{\n  "emoji": "\\ud83d\\ude00"\n}\n'
    )


def test_undecodable_input_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", typed)
    prepare_streams()

    assert sys.stdin.readline() == "caf\N{REPLACEMENT CHARACTER}\n"


def test_stdout_is_flushed_before_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        full.write("some\n")
        with pytest.raises(typer.Exit) as caught, exit_codes():
            raise typer.Exit(ExitCode.ITEMS_FAILED)

    assert caught.value.exit_code == ExitCode.FAILED
    assert capsys.readouterr().err == "millrace: stdout: No space left on device\n"
