"""When a job stops itself: too many of its items failed, or it used the tokens it may. Pure."""

from dataclasses import dataclass
from typing import Final

from core.states import CloseReason

RATIO_SAMPLE_DEFAULT: Final = 100
"""Items that must have run before a ratio of failures means anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBudget:
    """What a job's owner allows; None: without bound."""

    max_failed_items: int | None = None
    max_failed_ratio: float | None = None  # of the items that succeeded or failed
    failed_ratio_sample: int | None = None  # None: `RATIO_SAMPLE_DEFAULT`
    max_total_tokens: int | None = None


def budget_close_reason(
    budget: JobBudget, *, succeeded: int, failed: int, total_tokens: int
) -> CloseReason | None:
    """Return why a job with these counts must stop now, or None.

    One failure more than allowed stops it, and the token that reaches the cap.
    """
    if budget.max_failed_items is not None and failed > budget.max_failed_items:
        return CloseReason.FAILURE_BUDGET
    ran = succeeded + failed
    sample = budget.failed_ratio_sample or RATIO_SAMPLE_DEFAULT
    if (
        budget.max_failed_ratio is not None
        and ran >= sample
        and failed > budget.max_failed_ratio * ran
    ):
        return CloseReason.FAILURE_BUDGET
    if budget.max_total_tokens is not None and total_tokens >= budget.max_total_tokens:
        return CloseReason.SPEND_CAP
    return None
