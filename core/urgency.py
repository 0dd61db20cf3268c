"""Ranks a tenant's jobs: by priority, then by the octave of the time left until the deadline.

Jobs of one rank share capacity. In a strict order of deadlines a job of a million items would block
every small job that was submitted a minute later. Within a priority, jobs whose deadlines need a
strict order come first, then jobs that need only a few more items to end; jobs that cannot end in
time come last (see `jobs.expansion.deadlines`).
"""

from typing import Final

PRIORITY_MIN: Final = 0
PRIORITY_MAX: Final = 9
PRIORITY_DEFAULT: Final = 5

_LEFT_S_MAX: Final = 2**32
_FIRST_OCTAVE: Final = 2  # after the urgent jobs and the tails
_RELEGATED: Final = _FIRST_OCTAVE + _LEFT_S_MAX.bit_length() + 1
_CLASSES: Final = _RELEGATED + 1


def rank(priority: int, left_s: float) -> int:
    """Return a job's rank among its tenant's jobs; the lowest is first, equal ranks share."""
    return urgent_rank(priority) + _FIRST_OCTAVE + deadline_class(left_s)


def urgent_rank(priority: int) -> int:
    """Return the rank of jobs in the order of their deadlines, before all others of a priority."""
    return (PRIORITY_MAX - priority) * _CLASSES


def tail_rank(priority: int) -> int:
    """Return the rank of jobs with few items left to emit, before all jobs that are not urgent."""
    return urgent_rank(priority) + 1


def relegated_rank(priority: int) -> int:
    """Return the rank of jobs that cannot end in time, behind all others of a priority."""
    return urgent_rank(priority) + _RELEGATED


def priority_of(job_rank: int) -> int:
    """Return the priority of a rank."""
    return PRIORITY_MAX - job_rank // _CLASSES


def deadline_class(left_s: float) -> int:
    """Return the octave of the time to a deadline: 0 when past or NaN, 17 for a day."""
    return int(
        min(max(0.0, left_s), _LEFT_S_MAX)
    ).bit_length()  # of NaN, `max` returns its first argument
