"""When a batch closes and how large it may be: pure rules over numbers.

Batching depends on load, not on a timer: a replica that could double its load gets the available
items at once; a busy one waits for a full batch, but never longer than the maximum wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class BatchCloseReason(StrEnum):
    """Why a batch closed; the value is the metric's label."""

    ITEM_COUNT = "item_count"
    TOKEN_COUNT = "token_count"
    IDLE = "idle"  # the replica has credit for its whole concurrency
    DEADLINE = "deadline"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Inclusive bounds on one batch."""

    item_count_max: int
    token_count_max: int  # prompt plus expected output; a larger item forms a batch alone
    run_s_max: float  # of the replica's measured throughput
    wait_s_max: float  # from the moment when both an item and credit are available
    slack_s_min: float  # time to the earliest deadline below which a batch does not wait


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCandidate:
    """The items of one batch key that could form a batch now."""

    item_count: int
    token_count: int
    since_s: float  # monotonic: when items and credit were available, or the last batch left
    deadline_s: float  # the earliest deadline or a lower bound of it; seconds since the epoch


@dataclass(frozen=True, slots=True)
class Instant:
    """One instant on the two clocks that a decision reads."""

    monotonic_s: float
    wall_s: float


def close_reason(
    candidate: BatchCandidate, *, limits: BatchLimits, idle: bool, now: Instant
) -> BatchCloseReason | None:
    """Return why the batch closes now, or None to wait until `closes_at_s`.

    `idle`: the replica has credit for its whole concurrency.
    """
    if candidate.item_count == 0:
        return None
    if candidate.item_count >= limits.item_count_max:
        return BatchCloseReason.ITEM_COUNT
    if candidate.token_count >= limits.token_count_max:
        return BatchCloseReason.TOKEN_COUNT
    if idle:
        return BatchCloseReason.IDLE
    if candidate.deadline_s - now.wall_s <= limits.slack_s_min:
        return BatchCloseReason.DEADLINE
    if now.monotonic_s >= candidate.since_s + limits.wait_s_max:
        return BatchCloseReason.WAIT
    return None


def closes_at_s(candidate: BatchCandidate, *, limits: BatchLimits, now: Instant) -> float:
    """Return the monotonic time at which the batch closes if nothing else arrives."""
    slack_s = candidate.deadline_s - limits.slack_s_min - now.wall_s
    return min(candidate.since_s + limits.wait_s_max, now.monotonic_s + slack_s)


def item_count_cap(limits: BatchLimits, *, items_per_s: float, concurrency: int) -> int:
    """Return the items that the replica finishes within about `run_s_max`, at least 1.

    While its rate is unknown (0), return its concurrency: a small batch measures the rate soon.
    """
    fitting = int(items_per_s * limits.run_s_max) if items_per_s > 0 else concurrency
    return max(1, min(limits.item_count_max, fitting))


def fitting_prefix(
    token_counts: Sequence[int], *, item_count_max: int, token_count_max: int
) -> int:
    """Return how many of the first items fit both bounds: at least one of a non-empty sequence."""
    total = 0
    for count, tokens in enumerate(token_counts[:item_count_max]):
        total += tokens
        if count and total > token_count_max:
            return count
    return min(len(token_counts), item_count_max)
