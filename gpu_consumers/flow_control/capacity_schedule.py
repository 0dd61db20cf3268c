"""When the public state of a replica is published: once a second, and soon after a change.

API processes, intake, batchers and the autoscaler read the records of all replicas, so a replica
sends few of them; grants go to batchers apart (ADR 87). Pure: the time is an argument.
"""

from dataclasses import dataclass
from typing import Final

from topics.records.records import Capacity

REPEAT_S: Final = 1.0
"""Interval of records without a change. A replica counts as silent after three times that."""

INTERVAL_S_MIN: Final = 0.05
"""Least time between two records: changes in between are published together."""

RATE_FACTOR: Final = 1.5
"""The measured rate has changed when it grew or fell by this factor, or was or is unknown (0)."""


@dataclass(slots=True)
class CapacitySchedule:
    """What was published last, and when; times are monotonic seconds."""

    _published: Capacity | None = None
    _published_s: float = float("-inf")

    def wait_s(self, *, now_s: float) -> float:
        """Return the time until another record may be sent, 0 for now."""
        return max(0.0, self._published_s + INTERVAL_S_MIN - now_s)

    def is_due(self, newest: Capacity, *, now_s: float) -> bool:
        """Return whether `newest` is to be sent as soon as a record may be."""
        if self._published is None or self.repeat_wait_s(now_s=now_s) <= 0:
            return True
        return state_has_changed(self._published, newest)

    def repeat_wait_s(self, *, now_s: float) -> float:
        """Return the time until the next record without a change, 0 for now."""
        return max(0.0, self._published_s + REPEAT_S - now_s)

    def mark_published(self, capacity: Capacity, *, now_s: float) -> None:
        """Note that `capacity` was sent now."""
        self._published, self._published_s = capacity, now_s


def state_has_changed(before: Capacity, newest: Capacity) -> bool:
    """Return whether readers must learn of the difference before the next repetition.

    Grants do not count, nor does the load of the engine, and a rate counts from `RATE_FACTOR` on.
    """
    low, high = sorted((before.items_per_s, newest.items_per_s))
    return (
        before.available != newest.available
        or before.in_danger != newest.in_danger
        or before.concurrency != newest.concurrency
        or before.epoch != newest.epoch
        or before.partitions != newest.partitions
        or before.models != newest.models
        or before.lifecycle != newest.lifecycle
        or before.leaves_at_s != newest.leaves_at_s
        or newest.in_flight_jobs is not None
        or newest.output_means is not None
        or high > RATE_FACTOR * low
    )
