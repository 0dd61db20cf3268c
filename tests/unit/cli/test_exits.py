"""Goal: every expected failure has the documented exit code and one line; a defect has neither."""

import httpx2
import openai
import pytest
import sqlalchemy.exc
import typer
from typer.testing import CliRunner

from cli.exits import (
    CommandError,
    CommandGroup,
    ExitCode,
    JobNotEndedError,
    KeyMissingError,
    NotFoundError,
    WaitTimeoutError,
    describe_failure,
    exit_codes,
)
from cli.main import app as millrace
from core.errors import MillraceError, SettingsError
from registry.models import ModelDiffersError, ModelRefusedError
from tenancy.errors import TenantExistsError, TenantMissingError
from topics.errors import LogUnavailableError

REQUEST = httpx2.Request("GET", "http://127.0.0.1:9/v1/batches/batch_1")


def refused(status: int, body: object, headers: dict[str, str] | None = None) -> openai.APIError:
    response = httpx2.Response(status, request=REQUEST, headers=headers)
    return openai.APIStatusError("Error code", response=response, body=body)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, ExitCode.FAILED),
        (401, ExitCode.AUTH),
        (403, ExitCode.AUTH),
        (404, ExitCode.NOT_FOUND),
        (409, ExitCode.CONFLICT),
        (413, ExitCode.FAILED),
        (422, ExitCode.FAILED),
        (429, ExitCode.CONFLICT),
        (500, ExitCode.FAILED),
        (503, ExitCode.FAILED),
        (504, ExitCode.TIMEOUT),
    ],
)
def test_http_status_has_an_exit_code(status: int, code: ExitCode) -> None:
    verdict = describe_failure(refused(status, None))

    assert verdict is not None
    assert verdict.exit_code is code


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
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
def test_error_code_takes_precedence_over_the_status(
    status: int, code: object, exit_code: ExitCode
) -> None:
    verdict = describe_failure(refused(status, {"message": "No.", "code": code}))

    assert verdict is not None
    assert verdict.exit_code is exit_code


def test_message_has_the_request_id() -> None:
    failure = refused(404, {"message": "No such batch."}, {"x-request-id": "req_7"})

    verdict = describe_failure(failure)

    assert verdict is not None
    assert verdict.message == "No such batch. (request req_7)"


def test_message_names_the_parameter() -> None:
    verdict = describe_failure(
        refused(400, {"message": "Supported are /v1/x.", "param": "endpoint"})
    )

    assert verdict is not None
    assert verdict.message == "endpoint: Supported are /v1/x."


def test_response_without_message_shows_its_status() -> None:
    verdict = describe_failure(refused(502, "<html>"))

    assert verdict is not None
    assert verdict.message == "HTTP 502"


def test_unreachable_server_is_named() -> None:
    verdict = describe_failure(openai.APIConnectionError(request=REQUEST))

    assert verdict is not None
    assert verdict.exit_code is ExitCode.FAILED
    assert "http://127.0.0.1:9" in verdict.message


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (openai.APITimeoutError(request=REQUEST), ExitCode.TIMEOUT),
        (httpx2.RemoteProtocolError("cut", request=REQUEST), ExitCode.FAILED),
        (CommandError(), ExitCode.FAILED),
        (NotFoundError(), ExitCode.NOT_FOUND),
        (KeyMissingError(), ExitCode.AUTH),
        (JobNotEndedError(), ExitCode.CONFLICT),
        (WaitTimeoutError(), ExitCode.TIMEOUT),
        (SettingsError("MILLRACE_DATABASE_URL: Field required"), ExitCode.USAGE),
        (TenantExistsError(name="a"), ExitCode.CONFLICT),
        (TenantMissingError(name="a"), ExitCode.NOT_FOUND),
        (ModelRefusedError(name="m"), ExitCode.USAGE),
        (ModelDiffersError(name="m"), ExitCode.CONFLICT),
        (LogUnavailableError("no broker"), ExitCode.FAILED),
        (sqlalchemy.exc.OperationalError("", None, Exception("refused")), ExitCode.FAILED),
        (sqlalchemy.exc.ProgrammingError("", None, Exception("no table")), ExitCode.FAILED),
        (FileNotFoundError(2, "No such file or directory", "in.jsonl"), ExitCode.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_failure_has_an_exit_code(failure: Exception, code: ExitCode) -> None:
    verdict = describe_failure(failure)

    assert verdict is not None
    assert verdict.exit_code is code
    assert "\n" not in verdict.message


def test_message_has_the_facts_of_an_error() -> None:
    verdict = describe_failure(MillraceError("It failed.", topic="results", partition=3))

    assert verdict is not None
    assert verdict.message == "It failed. (topic results, partition 3)"


@pytest.mark.parametrize("failure", [ValueError("defect"), BrokenPipeError(), typer.Exit(6)])
def test_defect_passes(failure: Exception) -> None:
    with pytest.raises(type(failure)), exit_codes():
        raise failure


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


class Refusal(Exception):  # noqa: N818  a driver's
    """What a driver raises."""

    def __init__(self, sqlstate: str | None) -> None:
        super().__init__("permission denied for table jobs\nmore")
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("sqlstate", "told"),
    [
        ("42P01", "run `python -P -m migrations`"),
        ("42703", "run `python -P -m migrations`"),
        ("42501", "Postgres refuses: permission denied for table jobs"),
    ],
)
def test_refused_statement_has_a_message(sqlstate: str, told: str) -> None:
    verdict = describe_failure(sqlalchemy.exc.ProgrammingError("SELECT", None, Refusal(sqlstate)))

    assert verdict is not None
    assert told in verdict.message
    assert "more" not in verdict.message


@pytest.mark.parametrize(
    ("sqlstate", "told"),
    [
        (None, "Postgres does not answer: "),  # nobody listens there
        ("57P03", "Postgres does not answer: "),  # it starts or stops
        ("57014", "Postgres took too long: "),  # a statement
        ("55P03", "Postgres took too long: "),  # a lock
        ("53100", "Postgres refuses: "),  # its disk is full
    ],
)
def test_unavailable_slow_and_refusing_database_differ(sqlstate: str | None, told: str) -> None:
    cause = Refusal(sqlstate)

    verdict = describe_failure(sqlalchemy.exc.OperationalError("SELECT", None, cause))

    assert verdict is not None
    assert verdict.exit_code is ExitCode.FAILED
    assert verdict.message == f"{told}permission denied for table jobs"


def test_number_out_of_range_is_wrong_usage() -> None:
    given = ["tenants", "create", "x", "--stored-bytes-max", "99999999999999999999"]
    done = CliRunner().invoke(millrace, given)

    assert done.exit_code == ExitCode.USAGE, done.output
