"""What a producer has sent to each partition and the broker has not acknowledged.

One unavailable partition must neither fill the producer's queue, which all partitions share, nor be
given new work. A record costs one dictionary operation when sent and one when acknowledged.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topics import metrics
from topics.clients.offset_tracker import Partition

_LOG = logging.getLogger(__name__)

PARTITION_BYTES_MAX: Final = 8 * 1024 * 1024
"""Unacknowledged bytes of one partition from which it gets no more: an eighth of the queue."""

PARTITION_RECORDS_MAX: Final = 12_500
"""The same for records."""

TOTAL_BYTES_MAX: Final = 48 * 1024 * 1024
"""Unacknowledged bytes of all partitions from which none gets more: three quarters of the queue."""


@dataclass(slots=True)
class _Backlog:
    """The unacknowledged records of one partition."""

    count: int = 0
    byte_count: int = 0
    since_s: float = 0.0  # of the last acknowledgement, or of the first record without one before


class PartitionBacklogs:
    """Counts what is unacknowledged, by partition. Safe for threads."""

    def __init__(self, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """A partition is unavailable when it acknowledges nothing for `timeout_s`."""
        self._timeout_s, self._monotonic_s = timeout_s, monotonic_s
        self._lock = threading.Lock()
        self._backlogs: dict[Partition, _Backlog] = {}
        self._byte_count = 0
        self._reported: set[Partition] = set()

    def add(self, place: Partition, byte_count: int) -> None:
        """Count a record that is sent."""
        with self._lock:
            backlog = self._backlogs.get(place)
            if backlog is None:
                backlog = self._backlogs[place] = _Backlog()
            if backlog.count == 0:
                backlog.since_s = self._monotonic_s()
            backlog.count += 1
            backlog.byte_count += byte_count
            self._byte_count += byte_count

    def remove(self, place: Partition, byte_count: int) -> None:
        """Count a record as acknowledged, or as failed for good."""
        with self._lock:
            backlog = self._backlogs[place]
            backlog.count -= 1
            backlog.byte_count -= byte_count
            backlog.since_s = self._monotonic_s()
            self._byte_count -= byte_count

    def is_unavailable(self, place: Partition) -> bool:
        """Return whether records wait for the partition and none was acknowledged for long."""
        backlog = self._backlogs.get(place)
        return backlog is not None and self._waited_s(backlog) >= self._timeout_s

    def has_space(self, place: Partition) -> bool:
        """Return whether the partition is available and within the limits."""
        backlog = self._backlogs.get(place)
        if backlog is None or backlog.count == 0:
            return self._byte_count < TOTAL_BYTES_MAX
        return (
            backlog.byte_count < PARTITION_BYTES_MAX
            and backlog.count < PARTITION_RECORDS_MAX
            and self._byte_count < TOTAL_BYTES_MAX
            and self._waited_s(backlog) < self._timeout_s
        )

    def unavailable(self) -> list[Partition]:
        """Return the partitions that are unavailable, in order."""
        return sorted(self._unavailable_s())

    def report_unavailable(self) -> None:
        """Update the metric, and log each change once."""
        waited_s = self._unavailable_s()
        for place in self._reported - waited_s.keys():
            metrics.PARTITION_UNAVAILABLE_SECONDS.labels(*map(str, place)).set(0)
            _LOG.info("a partition is available again", extra=_names(place))
        for place, seconds in waited_s.items():
            metrics.PARTITION_UNAVAILABLE_SECONDS.labels(*map(str, place)).set(seconds)
            if place not in self._reported:
                _LOG.warning("a partition is unavailable: its records wait", extra=_names(place))
        self._reported = set(waited_s)

    def _unavailable_s(self) -> dict[Partition, float]:
        """Return how long each unavailable partition has acknowledged nothing."""
        with self._lock:
            waited = {place: self._waited_s(backlog) for place, backlog in self._backlogs.items()}
        return {place: wait_s for place, wait_s in waited.items() if wait_s >= self._timeout_s}

    def _waited_s(self, backlog: _Backlog) -> float:
        return self._monotonic_s() - backlog.since_s if backlog.count else 0.0


def _names(place: Partition) -> dict[str, str | int]:
    return {"topic": place[0], "partition": place[1]}
