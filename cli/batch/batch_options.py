"""Arguments and options of the commands for jobs."""

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
SealOption: TypeAlias = Annotated[
    bool, typer.Option("--seal/--no-seal", help="--no-seal: more files will be appended.")
]
DeduplicateOption: TypeAlias = Annotated[
    bool,
    typer.Option("--deduplicate", help="Execute identical lines once; the others get copies."),
]
MaxFailedItemsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Stop the job when more items than this fail.")
]
MaxFailedRatioOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Stop the job when a larger share of executed items fails."),
]
FailedRatioSampleOption: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, help="Executed items from which the ratio counts; default 100."),
]
MaxTotalTokensOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Stop the job when it has used this many tokens.")
]
