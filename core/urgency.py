"""Ranks a tenant's jobs: by priority, then by the octave of the time left until the deadline.

Jobs of one rank share capacity. In a strict order of deadlines a job of a million items would block
every small job that was submitted a minute later.
"""

from typing import Final

PRIORITY_MIN: Final = 0
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5

_LEFT_S_MAX: Final = 2**32
_CLASSES: Final = _LEFT_S_MAX.bit_length() + 1


def rank(priority: int, left_s: float) -> int:
    """Return a job's rank among its tenant's jobs; the lowest is first, equal ranks share."""
    return (PRIORITY_MAX - priority) * _CLASSES + deadline_class(left_s)


def deadline_class(left_s: float) -> int:
    """Return the octave of the time to a deadline: 0 when past or NaN, 17 for a day."""
    return int(
        min(max(0.0, left_s), _LEFT_S_MAX)
    ).bit_length()  # of NaN, `max` returns its first argument
