"""Which of a client's partitions cannot be read, from what its client knows anyway: no requests.

A broker answers a fetch within the fetch wait, also without records. So a partition is unreadable
when it has no leader, or its leader is not connected or owes an answer for longer. A partition
that nobody fetches, because of backpressure, is not unreadable.
"""

import logging
import time
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from topics import metrics
from topics.clients.offset_tracker import Partition

_LOG = logging.getLogger(__name__)

_STATISTICS_INTERVAL_S: Final = 2.0
_LATE_S: Final = 1.0
"""Time after the fetch wait from which an answer of a broker is late."""

_CONNECTED: Final = "UP"


class UnreadablePartitions:
    """Tracks since when partitions cannot be read. `observe` is for one thread at a time."""

    def __init__(self, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """A partition counts as unreadable after `timeout_s`."""
        self._timeout_s, self._monotonic_s = timeout_s, monotonic_s
        self._since_s: dict[Partition, float] = {}
        self._reported: frozenset[Partition] = frozenset()

    @property
    def partitions(self) -> frozenset[Partition]:
        """The partitions that could not be read for `timeout_s`; from any thread."""
        limit_s = self._monotonic_s() - self._timeout_s
        return frozenset(p for p, since_s in self._since_s.items() if since_s <= limit_s)

    def observe(self, unreadable: Collection[Partition]) -> None:
        """Note which partitions cannot be read now; update the metric and log each change."""
        now_s = self._monotonic_s()
        self._since_s = {place: self._since_s.get(place, now_s) for place in unreadable}
        found = self.partitions
        for topic, number in self._reported - found:
            metrics.PARTITION_UNREADABLE_SECONDS.labels(topic, str(number)).set(0)
            _LOG.info("a partition can be read again", extra=_names(topic, number))
        for topic, number in found:
            seconds = now_s - self._since_s[topic, number]
            metrics.PARTITION_UNREADABLE_SECONDS.labels(topic, str(number)).set(seconds)
        for topic, number in found - self._reported:
            _LOG.warning("a partition cannot be read", extra=_names(topic, number))
        self._reported = found


class ReadStatistics:
    """Finds a librdkafka client's unreadable partitions in the statistics that it reports."""

    def __init__(
        self,
        unreadable: UnreadablePartitions,
        prefix: str,
        fetch_wait_s: float,
        read_now: Callable[[], Collection[Partition]],
    ) -> None:
        """`read_now` returns the partitions that the client reads."""
        self._unreadable, self._prefix, self._read_now = unreadable, prefix, read_now
        self._late_us = (fetch_wait_s + _LATE_S) * 1e6

    def client_options(self) -> dict[str, int | Callable[[str], None]]:
        """Return the options that make the client report, in its polls."""
        interval_ms = int(_STATISTICS_INTERVAL_S * 1000)
        return {"statistics.interval.ms": interval_ms, "stats_cb": self.apply}

    def apply(self, statistics: str) -> None:
        """Read a report of the client, in JSON."""
        found = msgspec.json.decode(statistics, type=_Statistics)
        answering = {b.nodeid for b in found.brokers.values() if self._is_answering(b)}
        self._unreadable.observe(
            [p for p in self._read_now() if self._leader(found, p) not in answering]
        )

    def _is_answering(self, broker: "_Broker") -> bool:
        is_late = broker.waitresp_cnt > 0 and broker.rxidle > self._late_us
        return broker.state == _CONNECTED and not is_late

    def _leader(self, found: "_Statistics", partition: Partition) -> int:
        """Return the broker from which the client reads a partition; -1 without one."""
        topic = found.topics.get(self._prefix + partition[0])
        known = None if topic is None else topic.partitions.get(str(partition[1]))
        return -1 if known is None or known.leader < 0 else known.broker


class _Broker(msgspec.Struct):
    """A broker in the statistics."""

    nodeid: int  # -1 for an address of the settings
    state: str
    waitresp_cnt: int = 0  # requests without an answer
    rxidle: int = -1  # microseconds since it sent something; -1 before that


class _Partition(msgspec.Struct):
    """A partition in the statistics."""

    leader: int
    broker: int


class _Topic(msgspec.Struct):
    """A topic in the statistics."""

    partitions: dict[str, _Partition]


class _Statistics(msgspec.Struct):
    """The read fields, see STATISTICS.md of librdkafka."""

    brokers: dict[str, _Broker]
    topics: dict[str, _Topic]


def _names(topic: str, number: int) -> dict[str, str | int]:
    return {"topic": topic, "partition": number}
