"""Arguments and options that several commands for jobs share."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cli.api_client import require_id
from core.urgency import PRIORITY_MAX, PRIORITY_MIN

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The job, `batch_…`.", callback=require_id)
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, help="Longest wait in seconds; then exit 124. The job continues."),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the output file here, completely or not at all; - is stdout."
    ),
]
ErrorsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--errors", help="Write the error file here: items that did not succeed."),
]
PriorityOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=PRIORITY_MIN, max=PRIORITY_MAX, help="Priority among your jobs; the highest runs first."
    ),
]
