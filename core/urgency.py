"""Which of a tenant's own jobs goes first: its priority decides, then the octave of its time left.

Jobs of one octave share: a strict order of deadlines would let a job of a million items keep out
every small one that came a minute later.
"""

from typing import Final

PRIORITY_MIN: Final = 0
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5

_LEFT_S_MAX: Final = 2**32
_CLASSES: Final = _LEFT_S_MAX.bit_length() + 1


def rank(priority: int, left_s: float) -> int:
    """Return a job's rank among those of its tenant; the lowest goes first, equal ones share."""
    return (PRIORITY_MAX - priority) * _CLASSES + deadline_class(left_s)


def deadline_class(left_s: float) -> int:
    """Return the octave of the time to a deadline: 0 when it is past or no number, 17 for a day."""
    return int(min(max(0.0, left_s), _LEFT_S_MAX)).bit_length()  # not a number: max is its first
