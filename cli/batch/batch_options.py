"""Arguments and options that several verbs of `millrace batch` take."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cli.path_ids import require_id

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The job, `batch_…`.", callback=require_id)
]
TimeoutOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, help="Seconds to wait at most; then exit 124. The job goes on."),
]
OutputOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the output file here, whole or not at all; - is stdout."
    ),
]
ErrorsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--errors", help="Write the error file here: items that did not succeed."),
]
