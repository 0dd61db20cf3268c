"""Maps every expected failure to one line on stderr and an exit code.

Exit codes are defined only here; scripts rely on them.
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

from cli.output import flush_stdout, write_last_line
from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_UNAVAILABLE, driver_message

if TYPE_CHECKING:
    import openai


class ExitCode(IntEnum):
    """The exit codes of `millrace`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    AUTH = 4
    CONFLICT = 5  # the state of the resource, or a quota, forbids the operation
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
    """The resource does not exist."""

    exit_code = ExitCode.NOT_FOUND


class KeyMissingError(CommandError):
    """There is no API key: set MILLRACE_KEY."""

    exit_code = ExitCode.AUTH


class JobStillRunningError(CommandError):
    """The job has not ended yet."""

    exit_code = ExitCode.CONFLICT


class WaitTimeoutError(CommandError):
    """The wait timed out (--timeout); the job continues."""

    exit_code = ExitCode.TIMEOUT


@dataclass(frozen=True, slots=True)
class CommandFailure:
    """The exit code and the message of an expected failure."""

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

# SQLSTATE codes: https://www.postgresql.org/docs/current/errcodes-appendix.html
_UNDEFINED_TABLE_OR_COLUMN = frozenset({"42P01", "42703"})
_TIMEOUTS = frozenset({"57014", "55P03", "25P03", "25P04"})  # statement, lock, transaction
_UNAVAILABLE = ("08", "57P")  # classes: connection lost, server starting or stopping

_BY_CODE = {
    "batch_ended": ExitCode.CONFLICT,
    "batch_not_open": ExitCode.CONFLICT,
    "batch_sealed": ExitCode.CONFLICT,
    "deadline_exceeded": ExitCode.TIMEOUT,  # also an event of a stream
    "file_not_found": ExitCode.NOT_FOUND,  # has status 400 as the input of a job
    "invalid_settings": ExitCode.USAGE,
    "job_ended": ExitCode.CONFLICT,
    "queue_timeout": ExitCode.TIMEOUT,  # also an event of a stream
    "policies_refused": ExitCode.USAGE,
    "adapter_invalid": ExitCode.USAGE,
    "alias_refused": ExitCode.USAGE,
    "model_differs": ExitCode.CONFLICT,
    "model_in_use": ExitCode.CONFLICT,
    "model_key_not_found": ExitCode.NOT_FOUND,
    "model_key_revoked": ExitCode.CONFLICT,
    "model_name_taken": ExitCode.CONFLICT,
    "model_not_found": ExitCode.NOT_FOUND,
    "model_retired": ExitCode.CONFLICT,
    "model_version_ambiguous": ExitCode.USAGE,
    "revision_mismatch": ExitCode.CONFLICT,
    "model_refused": ExitCode.USAGE,
    "engine_option_refused": ExitCode.USAGE,
    "key_refused": ExitCode.USAGE,
    "manifest_refused": ExitCode.USAGE,
    "model_file_changed": ExitCode.CONFLICT,
    "model_signature_invalid": ExitCode.USAGE,
    "model_source_away": ExitCode.USAGE,
    "model_source_refused": ExitCode.USAGE,
    "settings_refused": ExitCode.USAGE,
    "tenant_exists": ExitCode.CONFLICT,
    "tenant_missing": ExitCode.NOT_FOUND,
    "tenant_refused": ExitCode.USAGE,
    "webhook_endpoint_disabled": ExitCode.CONFLICT,
    "zero_retention": ExitCode.CONFLICT,
}
"""Exit codes by error code, local or of the server; they take precedence over the status."""


class CommandGroup(TyperGroup):
    """A Typer group that reports expected failures through `exit_codes`."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the command line. `--help` writes its output here."""
        with exit_codes():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with exit_codes():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Report an expected failure of the block on stderr and exit with its code.

    A failure to write stdout, also when it is flushed after the block, is expected. Defects pass.
    """
    try:
        try:
            yield
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as error:  # `describe_failure` knows which are expected; defects pass
        failure = describe_failure(error)
        if failure is None:
            raise
        write_last_line(f"millrace: {failure.message}")
        raise typer.Exit(failure.exit_code) from None


def describe_failure(error: Exception) -> CommandFailure | None:
    """Return the exit code and message of an expected failure, None for a defect."""
    if isinstance(error, CommandError):
        return CommandFailure(error.exit_code, str(error))
    if isinstance(error, MillraceError):
        facts = ", ".join(f"{name} {value}" for name, value in error.facts.items())
        message = f"{error} ({facts})" if facts else str(error)
        return CommandFailure(_BY_CODE.get(error.code, ExitCode.FAILED), message)
    if isinstance(error, DATABASE_UNAVAILABLE):
        return CommandFailure(ExitCode.FAILED, _postgres_message(error))
    if isinstance(error, sqlalchemy.exc.ProgrammingError):
        return CommandFailure(ExitCode.FAILED, _statement_message(error))
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        filename = f"{error.filename}: " if error.filename else ""
        return CommandFailure(ExitCode.FAILED, f"{filename}{error.strerror or error}")
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        return CommandFailure(ExitCode.USAGE, "An argument contains bytes that are not UTF-8.")
    return _describe_api_failure(error)


def _postgres_message(error: Exception) -> str:
    """Distinguish an unavailable server, a timeout and a refused operation by SQLSTATE."""
    state = str(getattr(getattr(error, "orig", None) or error, "sqlstate", None) or "")
    if state in _TIMEOUTS:
        problem = "took too long"
    elif state and not state.startswith(_UNAVAILABLE):
        problem = "refuses"
    else:
        problem = "does not answer"
    return f"Postgres {problem}: {driver_message(error)}"


def _statement_message(error: sqlalchemy.exc.ProgrammingError) -> str:
    if getattr(error.orig, "sqlstate", None) in _UNDEFINED_TABLE_OR_COLUMN:
        return (
            "The database does not have the schema of this release: run `python -P -m migrations`."
        )
    return f"Postgres refuses: {driver_message(error)}"


def _describe_api_failure(error: Exception) -> CommandFailure | None:
    if "openai" not in sys.modules:
        return None  # no call was made, and importing the client takes a second

    import httpx2
    import openai

    if isinstance(error, openai.APITimeoutError):
        return CommandFailure(ExitCode.TIMEOUT, f"{_origin(error)} did not answer in time.")
    if isinstance(error, openai.APIConnectionError):
        return CommandFailure(ExitCode.FAILED, unreachable_message(_origin(error)))
    if isinstance(error, openai.APIStatusError):
        by_status = _BY_STATUS.get(error.status_code, ExitCode.FAILED)
        # `code` may have any type when the response is not of this API.
        return CommandFailure(_BY_CODE.get(str(error.code), by_status), _response_message(error))
    if isinstance(error, openai.APIError):  # an error event of a stream
        code = _BY_CODE.get(str(error.code), ExitCode.FAILED)
        return CommandFailure(code, f"{error.message} ({error.code})")
    if isinstance(error, openai.OpenAIError | httpx2.HTTPError | httpx2.InvalidURL):
        return CommandFailure(ExitCode.FAILED, f"The call failed: {error}")
    return None


def unreachable_message(origin: str) -> str:
    """Return the message for a server that accepts no connection."""
    return f"Cannot reach {origin}. Check that it runs, and --url or MILLRACE_URL."


def _origin(error: "openai.APIError") -> str:
    url = error.request.url
    return f"{url.scheme}://{url.netloc.decode()}"


def _response_message(error: "openai.APIStatusError") -> str:
    """Return the server's message with the parameter and the request id that it names."""
    body = error.body if isinstance(error.body, dict) else {}
    message = str(body.get("message") or f"HTTP {error.status_code}").rstrip()
    if body.get("param"):
        message = f"{body['param']}: {message}"
    return f"{message} (request {error.request_id})" if error.request_id else message
