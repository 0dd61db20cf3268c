"""Options of `millrace batch submit` that the OpenAI API does not have."""

from typing import Annotated, Any, TypeAlias

import typer

from core.urgency import PRIORITY_MAX, PRIORITY_MIN

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
