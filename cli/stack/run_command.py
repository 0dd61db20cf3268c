"""`millrace run ROLE`: one role in the foreground, configured by variables."""

import os
from typing import Annotated

import typer

from cli.stack.processes.role_children import MODULES, ROLE_ENV, role_command


def _require_role(role: str) -> str:
    if role not in MODULES:
        raise typer.BadParameter(f"there is no role {role!r}; roles are {', '.join(MODULES)}")
    return role


def run(
    role: Annotated[
        str, typer.Argument(help=f"One of {', '.join(MODULES)}.", callback=_require_role)
    ],
) -> None:
    """Run one role in the foreground.

    Kafka, Postgres, the object store and the role's own options come from `MILLRACE_…` variables
    (docs/operations.md lists them). Each role may run in several replicas.
    """
    command = role_command(role)
    env = {**os.environ, **ROLE_ENV}
    os.execve(command[0], command, env)  # noqa: S606  the role replaces this process
