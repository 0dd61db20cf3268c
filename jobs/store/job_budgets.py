"""Failure budget and spend cap of a job: when the job closes itself. Pure."""

from dataclasses import dataclass
from typing import Final

from core.states import CloseReason

RATIO_SAMPLE_DEFAULT: Final = 100
"""Items that must have run before the failure ratio counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBudget:
    """Limits set by the owner of a job; None: no limit."""

    max_failed_items: int | None = None
    max_failed_ratio: float | None = None  # of the items that succeeded or failed
    failed_ratio_sample: int | None = None  # None: `RATIO_SAMPLE_DEFAULT`
    max_total_tokens: int | None = None


def budget_close_reason(
    budget: JobBudget, *, succeeded: int, failed: int, total_tokens: int
) -> CloseReason | None:
    """Return the reason to close a job with these counts, or None.

    A job closes when it exceeds its failure budget, or reaches its spend cap.
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
