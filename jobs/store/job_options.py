"""What a client may ask of a job besides its file and its window; all of it is ours."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from core.urgency import PRIORITY_DEFAULT, PRIORITY_MAX, PRIORITY_MIN
from jobs.errors import InvalidFieldError
from jobs.store.job_budgets import JobBudget

_COUNT_MAX: Final = 2**31 - 1
_TOKENS_MAX: Final = 2**63 - 1

_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "max_failed_items": (0, _COUNT_MAX),
    "max_failed_ratio": (0, 1),
    "failed_ratio_sample": (1, _COUNT_MAX),
    "max_total_tokens": (1, _TOKENS_MAX),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How a job runs; not checked yet."""

    priority: int = PRIORITY_DEFAULT
    sealed: bool = True  # False: further files may be appended until it is sealed
    deduplicate: bool = False  # identical items are computed once
    budget: JobBudget = field(default_factory=JobBudget)

    def checked_values(self) -> dict[str, Any]:
        """Return the columns of `jobs`. Raises InvalidFieldError for the first mistake."""
        check_priority(self.priority)
        bounds = asdict(self.budget)
        for name, (least, most) in _BOUNDS.items():
            value = bounds[name]
            if value is not None and not least <= value <= most:
                raise InvalidFieldError(f"Give {least} to {most}.", param=name)
        return {
            "priority": self.priority,
            "sealed": self.sealed,
            "total_final": self.sealed,
            "deduplicate": self.deduplicate,
            **bounds,
        }


def check_priority(priority: int) -> None:
    """Raise InvalidFieldError unless it is one."""
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise InvalidFieldError(f"Give {PRIORITY_MIN} to {PRIORITY_MAX}.", param="priority")
