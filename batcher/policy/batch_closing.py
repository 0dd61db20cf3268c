"""When a batch closes and how large it may be: pure rules over numbers.

Batching depends on load, not on a timer: a replica that could double its load gets the available
items at once; a busy one waits for a full batch, but never longer than the maximum wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

ROUND_S: Final = 0.25
"""Seconds of a replica's throughput in which every waiting tenant has a turn."""

ROUND_TENANTS_MAX: Final = 100
"""With more tenants turns get no shorter, but rounds longer: a replica gets at most 400 turns a
second, each a part of a batch."""


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
    slack_s_min: float  # margin between the expected end of a batch and its earliest deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCandidate:
    """The items of one batch key that could form a batch now."""

    item_count: int
    token_count: int
    since_s: float  # monotonic: when items and credit were available, or the last batch left
    deadline_s: float  # the earliest deadline or a lower bound of it; seconds since the epoch
    compute_s: float = 0.0  # until it is executed, if it is sent now


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
    if _wait_s_max(candidate, limits, now) <= 0:
        return BatchCloseReason.DEADLINE
    if now.monotonic_s >= candidate.since_s + limits.wait_s_max:
        return BatchCloseReason.WAIT
    return None


def closes_at_s(candidate: BatchCandidate, *, limits: BatchLimits, now: Instant) -> float:
    """Return the monotonic time at which the batch closes if nothing else arrives."""
    until_slack_s = now.monotonic_s + _wait_s_max(candidate, limits, now)
    return min(candidate.since_s + limits.wait_s_max, until_slack_s)


def _wait_s_max(candidate: BatchCandidate, limits: BatchLimits, now: Instant) -> float:
    """Return how long the batch may still wait: deadline - now - estimated compute - margin."""
    return candidate.deadline_s - now.wall_s - candidate.compute_s - limits.slack_s_min


def item_count_cap(limits: BatchLimits, *, items_per_s: float, concurrency: int) -> int:
    """Return the items that the replica finishes within about `run_s_max`, at least 1.

    While its rate is unknown (0), return its concurrency: a small batch measures the rate soon.
    """
    fitting = int(items_per_s * limits.run_s_max) if items_per_s > 0 else concurrency
    return max(1, min(limits.item_count_max, fitting))


def turn_items(tenant_count: int, *, items_per_s: float, item_count_max: int) -> int:
    """Return how many items of one tenant go before the next tenant has its turn, at least 1.

    Every waiting tenant has a turn within `ROUND_S` of the replica's measured throughput, as long
    as they are `ROUND_TENANTS_MAX` or fewer: a tenant that comes waits for one turn of each other
    one. Source: deficit round robin, whose latency is the sum of the quanta (Shreedhar and
    Varghese, SIGCOMM 1995). While the rate is unknown (0), a turn is `item_count_max`, a batch.
    """
    if items_per_s <= 0:
        return item_count_max
    fair = int(items_per_s * ROUND_S / min(max(1, tenant_count), ROUND_TENANTS_MAX))
    return max(1, min(fair, item_count_max))


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
