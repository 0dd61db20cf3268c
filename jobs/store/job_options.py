"""Options of a job: completion window, schedule, priority, sealing, deduplication and budgets."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from core.states import CloseReason
from core.urgency import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from jobs.errors import InvalidFieldError
from jobs.store.job_schedule import checked_hours, checked_not_before
from topics.records.catalogue import COMPLETION_WINDOW_DAYS_MAX

WINDOW_S_MIN: Final = 30
WINDOW_S_MAX: Final = COMPLETION_WINDOW_DAYS_MAX * 24 * 3600
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_WINDOW: Final = re.compile(r"([1-9][0-9]{0,7})([smhd])")

_COUNT_MAX: Final = 2**31 - 1
_TOKENS_MAX: Final = 2**63 - 1

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "max_failed_items": (0, _COUNT_MAX),
    "max_failed_ratio": (0, 1),
    "failed_ratio_sample": (1, _COUNT_MAX),
    "max_total_tokens": (1, _TOKENS_MAX),
}


RATIO_SAMPLE_DEFAULT: Final = 100
"""Items that must have run before the failure ratio counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBudget:
    """Limits set by the owner of a job; None: no limit."""

    max_failed_items: int | None = None
    max_failed_ratio: float | None = None  # of the items that succeeded or failed
    failed_ratio_sample: int | None = None  # None: `RATIO_SAMPLE_DEFAULT`
    max_total_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of a job, not checked yet."""

    priority: int = PRIORITY_DEFAULT
    sealed: bool = True  # False: files may be appended until it is sealed
    deduplicate: bool = False  # identical items run once
    not_before_s: int | None = None  # seconds since the epoch; no item is emitted before
    bulk_hours: str | None = None  # when its items may be emitted; None: at any time
    budget: JobBudget = field(default_factory=JobBudget)

    def checked_values(self) -> dict[str, Any]:
        """Return the columns of `jobs`. Raises InvalidFieldError for the first invalid value."""
        check_priority(self.priority)
        bounds = asdict(self.budget)
        for name, (least, most) in _BOUNDS.items():
            value = bounds[name]
            if value is not None and not least <= value <= most:
                raise InvalidFieldError(f"Give a value from {least} to {most}.", param=name)
        return {
            "priority": self.priority,
            "sealed": self.sealed,
            "total_final": self.sealed,
            "deduplicate": self.deduplicate,
            "not_before": checked_not_before(self.not_before_s),
            "bulk_hours": checked_hours(self.bulk_hours),
            **bounds,
        }


def check_priority(priority: int) -> None:
    """Raise InvalidFieldError if the priority is out of range."""
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidFieldError(
            f"Give a priority from {PRIORITY_MIN} to {PRIORITY_MAX}.", param="priority"
        )


def window_seconds(text: str) -> int | None:
    """Return the window in seconds, or None if it is malformed or out of range."""
    parts = _WINDOW.fullmatch(text)
    if parts is None:
        return None
    seconds = int(parts[1]) * _UNIT_S[parts[2]]
    return seconds if WINDOW_S_MIN <= seconds <= WINDOW_S_MAX else None


_CRASHES_MIN: Final = 60
_CRASHES_PER_MILLE: Final = 15  # three of each of 0.5 % of the items


def crash_budget(item_count: int) -> int:
    """Return how many processes the items of a job may crash; one more closes it."""
    return max(_CRASHES_MIN, item_count * _CRASHES_PER_MILLE // 1000)


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
