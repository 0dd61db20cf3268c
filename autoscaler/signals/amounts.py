"""Checks numbers of records: an absurd one is dropped and counted, and stops nothing."""

import math
from typing import Final

from autoscaler.metrics import DROPPED

AMOUNT_MAX: Final = 1e18
"""The largest amount that the rules take (`autoscaler.policy.signals`)."""

CLOCK_AHEAD_S_MAX: Final = 60.0
"""How far the clock of a publisher may be ahead of this process's."""


def amount(value: float, field: str) -> float | None:
    """Return a number from 0 to `AMOUNT_MAX`; None for another one, which is counted."""
    if 0 <= value <= AMOUNT_MAX:  # False for NaN
        return value
    DROPPED.labels(field).inc()
    return None


def is_time(value: float, now_s: float, field: str) -> bool:
    """Return whether a time of a record is no more than `CLOCK_AHEAD_S_MAX` ahead; else count it.

    A record of the future would hide all newer ones.
    """
    if math.isfinite(value) and 0 <= value <= now_s + CLOCK_AHEAD_S_MAX:
        return True
    DROPPED.labels(field).inc()
    return False
