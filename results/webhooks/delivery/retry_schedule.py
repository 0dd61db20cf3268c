"""When to try again: the schedule of Standard Webhooks, Retry-After, and a breaker for each lane.

Pure rules; `fraction` is random, uniform in [0, 1).
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
"""Least wait before each try; the first one comes at once."""

RETRIED_FOR_S: Final = sum(DELAYS_S)
"""From the first try to the last at least: more than the 72 hours that are promised."""

RETRY_AFTER_S_MAX: Final = DAY_S
_JITTER: Final = 0.1
QUIET_S: Final = DAY_S * (1 + _JITTER) + _HOUR_S
"""After so long without a try of a lane, its failures before say nothing of now.

The longest wait of one message, and an hour for rests and turns.
"""

_THROTTLE_S: Final = 10.0  # when a throttling receiver names no time
_BREAK_S: Final = 5.0
_BREAK_S_MAX: Final = 5 * _MINUTE_S
_DOUBLINGS_MAX: Final = 10
_THROTTLING: Final = frozenset({429, 502, 504})


@dataclass(frozen=True, slots=True)
class DeliveryFailure:
    """A try that was not answered with 2xx."""

    status_code: int | None  # None: there was no answer
    retry_after_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether the receiver says that it wants nothing ever again."""
        return self.status_code == 410

    @property
    def is_throttling(self) -> bool:
        """Whether the receiver is overloaded, so that its other deliveries should wait, too."""
        return self.status_code in _THROTTLING or self.retry_after_s is not None


def next_delay_s(failure_count: int, failure: DeliveryFailure, fraction: float) -> float | None:
    """Return the wait after the `failure_count`th failure, or None when there is no try left."""
    if failure_count >= len(DELAYS_S):
        return None
    return max(jittered(DELAYS_S[failure_count], fraction), failure.retry_after_s or 0.0)


def queue_backoff_s(
    failures_in_a_row: int, breaker_failures: int, failure: DeliveryFailure, fraction: float
) -> float:
    """Return how long the whole lane rests after a failure; 0 when it need not."""
    block_s = 0.0
    if failure.is_throttling:
        block_s = failure.retry_after_s or jittered(_THROTTLE_S, fraction)
    beyond = failures_in_a_row - breaker_failures
    if beyond >= 0:
        doubled = _BREAK_S * 2 ** min(beyond, _DOUBLINGS_MAX)
        block_s = max(block_s, jittered(min(doubled, _BREAK_S_MAX), fraction))
    return block_s


def jittered(delay_s: float, fraction: float) -> float:
    """Return `delay_s` and a tenth of it at most, so that failures do not return together.

    Never less: a schedule that could shrink would keep no promise of how long it goes on.
    """
    return delay_s * (1 + _JITTER * fraction)
