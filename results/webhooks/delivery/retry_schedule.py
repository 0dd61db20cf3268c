"""Retry schedule of Standard Webhooks, Retry-After, and a circuit breaker per delivery queue.

Pure functions; `fraction` is random, uniform in [0, 1).
"""

from dataclasses import dataclass
from typing import Final

_MINUTE_S: Final = 60.0
_HOUR_S: Final = 3600.0
DAY_S: Final = 24 * _HOUR_S

DELAYS_S: Final = (
    0.0,
    5.0,
    5 * _MINUTE_S,
    30 * _MINUTE_S,
    2 * _HOUR_S,
    5 * _HOUR_S,
    10 * _HOUR_S,
    14 * _HOUR_S,
    20 * _HOUR_S,
    24 * _HOUR_S,
)
"""Least wait before each attempt; the first one is immediate. In all, more than the promised 72
hours."""

RETRY_AFTER_S_MAX: Final = DAY_S
_JITTER: Final = 0.1
QUIET_S: Final = DAY_S * (1 + _JITTER) + _HOUR_S
"""Without an attempt for this time, earlier failures of a queue are forgotten.

The longest wait of one message, and an hour for backoff and concurrency limits.
"""

_THROTTLE_S: Final = 10.0  # when a throttling receiver sends no Retry-After
_BREAK_S: Final = 5.0
_BREAK_S_MAX: Final = 5 * _MINUTE_S
_DOUBLINGS_MAX: Final = 10
_THROTTLING: Final = frozenset({429, 502, 504})


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """An attempt without a 2xx response."""

    status_code: int | None  # None: no response
    retry_after_s: float | None = None

    @property
    def is_permanent(self) -> bool:
        """Whether the receiver rejects all further messages (HTTP 410 Gone)."""
        return self.status_code == 410

    @property
    def is_throttling(self) -> bool:
        """Whether the receiver is overloaded, so that its other deliveries should wait too."""
        return self.status_code in _THROTTLING or self.retry_after_s is not None


def next_delay_s(failure_count: int, failure: DeliveryFailure, fraction: float) -> float | None:
    """Return the wait after the `failure_count`th failure, None after the last attempt."""
    if failure_count >= len(DELAYS_S):
        return None
    return max(jittered(DELAYS_S[failure_count], fraction), failure.retry_after_s or 0.0)


def queue_backoff_s(
    failures_in_a_row: int, breaker_failures: int, failure: DeliveryFailure, fraction: float
) -> float:
    """Return for how long a delivery queue is blocked after a failure; 0 for not at all."""
    block_s = 0.0
    if failure.is_throttling:
        block_s = failure.retry_after_s or jittered(_THROTTLE_S, fraction)
    excess = failures_in_a_row - breaker_failures
    if excess >= 0:
        doubled = _BREAK_S * 2 ** min(excess, _DOUBLINGS_MAX)
        block_s = max(block_s, jittered(min(doubled, _BREAK_S_MAX), fraction))
    return block_s


def jittered(delay_s: float, fraction: float) -> float:
    """Return `delay_s` plus up to a tenth of it, so that failures do not return together.

    Never less, since the least duration of the schedule is promised.
    """
    return delay_s * (1 + _JITTER * fraction)
