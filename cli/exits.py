"""Turns every expected failure of a command into one line on stderr and an exit code.

All exit codes are defined here; scripts rely on them.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy.exc
import typer
from typer.core import TyperGroup

from cli.streams import flush_stdout, write_last_line
from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_UNAVAILABLE, driver_message

if TYPE_CHECKING:
    import openai


class ExitCode(IntEnum):
    """The exit codes of commands."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5  # of states, or with a quota
    ITEMS_FAILED = 6  # the job completed, some of its items did not succeed
    JOB_FAILED = 7  # the job failed, expired or was cancelled
    TIMEOUT = 124
    INTERRUPTED = 130


EXIT_CODES_HELP = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 key missing or refused, "
    "5 conflict or quota, 6 the job ended with failed items, 7 the job failed, expired or was "
    "cancelled, 124 out of time, 130 interrupted."
)


class CommandError(MillraceError):
    """The command failed."""

    code = "command_failed"
    disposition = Disposition.REJECT
    exit_code: ClassVar[ExitCode] = ExitCode.FAILED


class NotFoundError(CommandError):
    """Not found."""

    exit_code = ExitCode.NOT_FOUND


class KeyMissingError(CommandError):
    """There is no API key: set MILLRACE_KEY."""

    exit_code = ExitCode.AUTH


class JobNotEndedError(CommandError):
    """The job has not ended yet."""

    exit_code = ExitCode.CONFLICT


class WaitTimeoutError(CommandError):
    """The time given by --timeout is over; the job goes on."""

    exit_code = ExitCode.TIMEOUT


@dataclass(frozen=True, slots=True)
class FailureReport:
    """The message and exit code of a failure."""

    exit_code: ExitCode
    message: str


_BY_STATUS = {
    401: ExitCode.AUTH,
    403: ExitCode.AUTH,
    404: ExitCode.NOT_FOUND,
    409: ExitCode.CONFLICT,
    429: ExitCode.CONFLICT,
    504: ExitCode.TIMEOUT,
}

_WRONG_SCHEMA_STATES = frozenset({"42P01", "42703"})  # no such table, no such column
_TIMEOUT_STATES = frozenset(
    {"57014", "55P03", "25P03", "25P04"}
)  # of a statement, lock, transaction
_CONNECTION_STATE_PREFIXES = ("08", "57P")  # lost connections, stopping servers

_BY_CODE = {
    "batch_ended": ExitCode.CONFLICT,
    "batch_not_open": ExitCode.CONFLICT,
    "batch_sealed": ExitCode.CONFLICT,
    "deadline_exceeded": ExitCode.TIMEOUT,  # also inside a stream
    "file_not_found": ExitCode.NOT_FOUND,  # 400 where it is the input of a job
    "invalid_settings": ExitCode.USAGE,
    "job_ended": ExitCode.CONFLICT,
    "queue_timeout": ExitCode.TIMEOUT,  # also inside a stream
    "model_differs": ExitCode.CONFLICT,
    "model_refused": ExitCode.USAGE,
    "settings_refused": ExitCode.USAGE,
    "tenant_exists": ExitCode.CONFLICT,
    "tenant_missing": ExitCode.NOT_FOUND,
    "tenant_refused": ExitCode.USAGE,
    "webhook_endpoint_disabled": ExitCode.CONFLICT,
    "zero_retention": ExitCode.CONFLICT,
}
"""Exit code by error code, of this program or the server; more specific than the status."""


class CommandGroup(TyperGroup):
    """A group of commands that run inside `exit_on_failure`."""

    def make_context(self, *given: Any, **extra: Any) -> Any:
        """Parse the command line; `--help` writes its output here."""
        with exit_on_failure():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the parsed command."""
        with exit_on_failure():
            return super().invoke(ctx)


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """Turn an expected failure of the block into a line and an exit code; others propagate.

    Output that cannot be written is an expected failure, also at the end of the block.
    """
    try:
        try:
            yield
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as failure:
        report = failure_report(failure)
        if report is None:
            raise
        write_last_line(f"millrace: {report.message}")
        raise typer.Exit(report.exit_code) from None


def failure_report(failure: Exception) -> FailureReport | None:
    """Return the report of an expected failure, or None for a defect."""
    if isinstance(failure, CommandError):
        return FailureReport(failure.exit_code, str(failure))
    if isinstance(failure, MillraceError):
        facts = ", ".join(f"{name} {value}" for name, value in failure.facts.items())
        message = f"{failure} ({facts})" if facts else str(failure)
        return FailureReport(_BY_CODE.get(failure.code, ExitCode.FAILED), message)
    if isinstance(failure, DATABASE_UNAVAILABLE):
        return FailureReport(ExitCode.FAILED, _database_message(failure))
    if isinstance(failure, sqlalchemy.exc.ProgrammingError):
        return FailureReport(ExitCode.FAILED, _schema_message(failure))
    if isinstance(failure, OSError) and not isinstance(failure, BrokenPipeError):
        where = f"{failure.filename}: " if failure.filename else ""
        return FailureReport(ExitCode.FAILED, f"{where}{failure.strerror or failure}")
    if isinstance(failure, UnicodeEncodeError) and failure.reason == "surrogates not allowed":
        return FailureReport(ExitCode.USAGE, "An argument holds bytes that are not UTF-8.")
    return _call_failure_report(failure)


def _database_message(failure: Exception) -> str:
    """Distinguish a database that is unavailable, refuses, or times out."""
    state = str(getattr(getattr(failure, "orig", None) or failure, "sqlstate", None) or "")
    if state in _TIMEOUT_STATES:
        problem = "took too long"
    elif state and not state.startswith(_CONNECTION_STATE_PREFIXES):
        problem = "refuses"
    else:
        problem = "does not answer"
    return f"Postgres {problem}: {driver_message(failure)}"


def _schema_message(failure: sqlalchemy.exc.ProgrammingError) -> str:
    if getattr(failure.orig, "sqlstate", None) in _WRONG_SCHEMA_STATES:
        return (
            "The database does not hold the schema of this release: run `python -P -m migrations`."
        )
    return f"Postgres refuses: {driver_message(failure)}"


def _call_failure_report(failure: Exception) -> FailureReport | None:
    if "openai" not in sys.modules:
        return None  # no call was made, and importing the client takes a second

    import httpx2
    import openai

    if isinstance(failure, openai.APITimeoutError):
        return FailureReport(ExitCode.TIMEOUT, f"{_origin(failure)} did not answer in time.")
    if isinstance(failure, openai.APIConnectionError):
        return FailureReport(
            ExitCode.FAILED,
            f"Cannot reach {_origin(failure)}. Is it up? --url or MILLRACE_URL says where.",
        )
    if isinstance(failure, openai.APIStatusError):
        by_status = _BY_STATUS.get(failure.status_code, ExitCode.FAILED)
        # The code of another server may have any type.
        return FailureReport(_BY_CODE.get(str(failure.code), by_status), _server_message(failure))
    if isinstance(failure, openai.APIError):  # an event of a stream
        code = _BY_CODE.get(str(failure.code), ExitCode.FAILED)
        return FailureReport(code, f"{failure.message} ({failure.code})")
    if isinstance(failure, openai.OpenAIError | httpx2.HTTPError | httpx2.InvalidURL):
        return FailureReport(ExitCode.FAILED, f"The call failed: {failure}")
    return None


def _origin(failure: "openai.APIError") -> str:
    url = failure.request.url
    return f"{url.scheme}://{url.netloc.decode()}"


def _server_message(failure: "openai.APIStatusError") -> str:
    """Return the server's message with its parameter and the request id."""
    body = failure.body if isinstance(failure.body, dict) else {}
    message = str(body.get("message") or f"HTTP {failure.status_code}").rstrip()
    if body.get("param"):
        message = f"{body['param']}: {message}"
    return f"{message} (request {failure.request_id})" if failure.request_id else message
