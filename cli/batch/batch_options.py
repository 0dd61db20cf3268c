"""Arguments and options of `millrace batch`."""

from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from cli.api_paths import validate_id
from core.urgency import PRIORITY_MAX, PRIORITY_MIN

IdArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The job, `batch_…`.", callback=validate_id)
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

PriorityOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=PRIORITY_MIN, max=PRIORITY_MAX, help="Among your jobs; the highest goes first."
    ),
]
SealOption: TypeAlias = Annotated[
    bool, typer.Option("--seal/--no-seal", help="Whether no more files will be appended.")
]
DeduplicateOption: TypeAlias = Annotated[
    bool,
    typer.Option("--deduplicate", help="Compute identical lines once; their results are copies."),
]
MaxFailedItemsOption: TypeAlias = Annotated[
    int | None, typer.Option(min=0, help="Stop the job when more of its items fail.")
]
MaxFailedRatioOption: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0, max=1, help="Stop it when more than this share of what ran fails."),
]
FailedRatioSampleOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Items that must have run before that share counts; 100.")
]
MaxTotalTokensOption: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="Stop it when it has used as many tokens.")
]


def given_options(**options: Any) -> dict[str, Any]:
    """Return the options that are set: other servers reject all of them."""
    return {name: value for name, value in options.items() if value is not None}
