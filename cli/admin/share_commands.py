"""`millrace tenants shares`: what each tenant of a pool is due, and what it was served."""

import os
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from cli.admin.administration import OPERATOR_KEY_VARIABLE
from cli.api_client import DEFAULT_URL, connect, get_json, path_segment
from cli.exits import CommandError, ExitCode
from cli.output import FormatOption, OutputFormat, write_output
from core.limits import LIST_LIMIT_MAX

_HEADERS: Final = (
    "tenant",
    "weight",
    "reserved",
    "class",
    "waiting",
    "tokens in 60 s",
    "share",
    "virtual time",
    "lead",
)


class JobClass(StrEnum):
    """The class of jobs whose batchers report."""

    BULK = "bulk"
    INTERACTIVE = "interactive"


class NoOperatorKeyError(CommandError):
    """Served shares are on the log: set MILLRACE_OPERATOR_KEY and ask the API for them."""

    exit_code = ExitCode.USAGE


def show_shares(
    pool: Annotated[str, typer.Argument(help="The pool's name.")],
    job_class: Annotated[
        JobClass, typer.Option("--class", help="Online calls and bulk items share apart.")
    ] = JobClass.BULK,
    output_format: FormatOption = OutputFormat.TABLE,
) -> None:
    """List the tenants of a pool that wait or were served in the last minute.

    For operators, over the API with MILLRACE_OPERATOR_KEY.
    """
    key = os.environ.get(OPERATOR_KEY_VARIABLE, "")
    if not key.strip():
        raise NoOperatorKeyError
    found: list[dict[str, Any]] = []
    after: object = None
    with connect(os.environ.get("MILLRACE_URL") or DEFAULT_URL, key) as client:
        path = f"/admin/pools/{path_segment(pool)}/tenants"
        while True:
            parameters = {"class": job_class.value, "limit": LIST_LIMIT_MAX, "after": after}
            page = get_json(client, path, **parameters)
            found += page.get("data") or []
            after = page.get("last_id")
            if not page.get("has_more"):
                break
    write_output(output_format, found, _HEADERS, lambda: [_cells(one) for one in found])


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    virtual_time = one["virtual_time"]
    return (
        one["name"],
        str(one["weight"]),
        f"{one['reserved_share']:g}",
        one["priority_class"],
        f"{one['waiting_items']:,}",
        f"{one['tokens_per_minute']:,}",
        f"{one['served_share']:.1%}",
        "" if virtual_time is None else f"{virtual_time:,.0f}",
        f"{one['lead']:,.0f}",
    )
