"""How a command ends: every expected failure becomes one line on stderr and one exit code.

This is the only place that knows exit codes; scripts rely on them.
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

from cli.standard_streams import flush_stdout, write_last_line
from core.errors import Disposition, MillraceError
from storage.postgres.engines import DATABASE_AWAY, drivers_words

if TYPE_CHECKING:
    import openai


class ExitCode(IntEnum):
    """What a command's exit code means."""

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
    """There is no such thing."""

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
class CommandFailure:
    """What the user is told, and the code that scripts read."""

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

_NOT_OF_THIS_SCHEMA = frozenset({"42P01", "42703"})  # no such table, no such column
_OUT_OF_TIME = frozenset({"57014", "55P03", "25P03", "25P04"})  # of a statement, lock, transaction
_GOING_AWAY = ("08", "57P")  # classes of a connection that is lost, and of a server that stops

_BY_CODE = {
    "batch_ended": ExitCode.CONFLICT,
    "batch_not_open": ExitCode.CONFLICT,
    "batch_sealed": ExitCode.CONFLICT,
    "deadline_exceeded": ExitCode.TIMEOUT,  # said in the middle of a stream, too
    "file_not_found": ExitCode.NOT_FOUND,  # 400 where it is the input of a job
    "invalid_settings": ExitCode.USAGE,
    "job_ended": ExitCode.CONFLICT,
    "queue_timeout": ExitCode.TIMEOUT,  # said in the middle of a stream, too
    "model_differs": ExitCode.CONFLICT,
    "model_refused": ExitCode.USAGE,
    "settings_refused": ExitCode.USAGE,
    "tenant_exists": ExitCode.CONFLICT,
    "tenant_missing": ExitCode.NOT_FOUND,
    "tenant_refused": ExitCode.USAGE,
    "webhook_endpoint_disabled": ExitCode.CONFLICT,
    "zero_retention": ExitCode.CONFLICT,
}
"""By the code of an error, ours or the server's: it says more than the status does."""


class CommandGroup(TyperGroup):
    """A group of commands whose expected failures end as `exit_codes` says."""

    def make_context(self, *given: Any, **extra: Any) -> Any:
        """Read the command line; --help writes here."""
        with exit_codes():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        with exit_codes():
            return super().invoke(ctx)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn an expected failure of the block into its line and exit code; let others pass.

    Output that cannot be written is such a failure, also at the end of the block.
    """
    try:
        try:
            yield
        finally:
            flush_stdout()
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Exception as failure:
        verdict = describe_failure(failure)
        if verdict is None:
            raise
        write_last_line(f"millrace: {verdict.message}")
        raise typer.Exit(verdict.exit_code) from None


def describe_failure(failure: Exception) -> CommandFailure | None:
    """Return how an expected failure ends, or None for a defect of ours."""
    if isinstance(failure, CommandError):
        return CommandFailure(failure.exit_code, str(failure))
    if isinstance(failure, MillraceError):
        facts = ", ".join(f"{name} {value}" for name, value in failure.facts.items())
        message = f"{failure} ({facts})" if facts else str(failure)
        return CommandFailure(_BY_CODE.get(failure.code, ExitCode.FAILED), message)
    if isinstance(failure, DATABASE_AWAY):
        return CommandFailure(ExitCode.FAILED, _told_of_postgres(failure))
    if isinstance(failure, sqlalchemy.exc.ProgrammingError):
        return CommandFailure(ExitCode.FAILED, _told_of_schema(failure))
    if isinstance(failure, OSError) and not isinstance(failure, BrokenPipeError):
        where = f"{failure.filename}: " if failure.filename else ""
        return CommandFailure(ExitCode.FAILED, f"{where}{failure.strerror or failure}")
    if isinstance(failure, UnicodeEncodeError) and failure.reason == "surrogates not allowed":
        return CommandFailure(ExitCode.USAGE, "An argument holds bytes that are not UTF-8.")
    return _verdict_on_call(failure)


def _told_of_postgres(failure: Exception) -> str:
    """Tell a server that is away from one that answered, and that from one out of time."""
    state = str(getattr(getattr(failure, "orig", None) or failure, "sqlstate", None) or "")
    if state in _OUT_OF_TIME:
        what = "took too long"
    elif state and not state.startswith(_GOING_AWAY):
        what = "refuses"
    else:
        what = "does not answer"
    return f"Postgres {what}: {drivers_words(failure)}"


def _told_of_schema(failure: sqlalchemy.exc.ProgrammingError) -> str:
    if getattr(failure.orig, "sqlstate", None) in _NOT_OF_THIS_SCHEMA:
        return (
            "The database does not hold the schema of this release: run `python -P -m migrations`."
        )
    return f"Postgres refuses: {drivers_words(failure)}"


def _verdict_on_call(failure: Exception) -> CommandFailure | None:
    if "openai" not in sys.modules:
        return None  # no call was made; importing the client would cost a second

    import httpx2
    import openai

    if isinstance(failure, openai.APITimeoutError):
        return CommandFailure(ExitCode.TIMEOUT, f"{_origin(failure)} did not answer in time.")
    if isinstance(failure, openai.APIConnectionError):
        return CommandFailure(
            ExitCode.FAILED,
            f"Cannot reach {_origin(failure)}. Is it up? --url or MILLRACE_URL says where.",
        )
    if isinstance(failure, openai.APIStatusError):
        by_status = _BY_STATUS.get(failure.status_code, ExitCode.FAILED)
        # Some other server's code may be anything.
        return CommandFailure(_BY_CODE.get(str(failure.code), by_status), _told_by(failure))
    if isinstance(failure, openai.APIError):  # an event of a stream
        code = _BY_CODE.get(str(failure.code), ExitCode.FAILED)
        return CommandFailure(code, f"{failure.message} ({failure.code})")
    if isinstance(failure, openai.OpenAIError | httpx2.HTTPError | httpx2.InvalidURL):
        return CommandFailure(ExitCode.FAILED, f"The call failed: {failure}")
    return None


def _origin(failure: "openai.APIError") -> str:
    url = failure.request.url
    return f"{url.scheme}://{url.netloc.decode()}"


def _told_by(failure: "openai.APIStatusError") -> str:
    """Return the server's own words, what they are about, and the id that an operator looks up."""
    body = failure.body if isinstance(failure.body, dict) else {}
    message = str(body.get("message") or f"HTTP {failure.status_code}").rstrip()
    if body.get("param"):
        message = f"{body['param']}: {message}"
    return f"{message} (request {failure.request_id})" if failure.request_id else message
