"""Adds partitions to the topics of a pool when it has more replicas than partitions.

A replica looks before it joins its groups, and again while it has no partition: replicas that start
together do not see each other. Records stay where they are, and the other replicas keep their
partitions.
"""

import logging
import threading
from collections.abc import Callable
from typing import Final

from core.clock import Clock
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.access import gpu_group
from topics.records.catalogue import batches_topic

PARTITIONS_MAX: Final = 1024
"""Partitions of a pool and class at most; further replicas wait for one."""

CHECK_S: Final = 2.0
"""Time without a partition after which a replica looks whether there are enough."""

_LOG = logging.getLogger(__name__)


def partitions_needed(count: int, members: int) -> int:
    """Return how many partitions a topic of `count` should have for so many members.

    It doubles, so that many replicas that start together cause few rebalances.
    """
    while count < min(members, PARTITIONS_MAX):
        count = min(2 * count, PARTITIONS_MAX)
    return count


def grow_for_members(admin: TopicAdmin, pool: str, job_class: str, *, joining: int) -> bool:
    """Grow a topic for the members of its group and `joining` ones; return whether it grew.

    A right that is missing, or a broker that does not answer, is logged: this replica may wait.
    """
    topic = batches_topic(pool, job_class)
    try:
        count = admin.partition_count(topic)
        needed = partitions_needed(count, admin.member_count(gpu_group(pool, job_class)) + joining)
        if needed == count:
            return False
        admin.grow(topic, needed)
    except KafkaUnavailableError as failure:
        _LOG.warning("partitions were not added", extra={"reason": str(failure)})
        return False
    _LOG.info("partitions were added", extra={"topic": topic.name, "partitions": needed})
    return True


class PartitionGrowth:
    """Looks after the partitions of one class while this replica has none.

    `has_grown` is called by the thread that reads the class; the broker is asked in another thread.
    """

    def __init__(self, grow: Callable[[], bool], clock: Clock) -> None:
        """`grow` is `grow_for_members`."""
        self._grow, self._clock = grow, clock
        self._without_since_s: float | None = None
        self._has_grown = threading.Event()

    def has_grown(self, has_partitions: bool) -> bool:
        """Return whether partitions were added since the last call: join the group again then."""
        now_s = self._clock.monotonic_s()
        if has_partitions:
            self._without_since_s = None
        elif self._without_since_s is None:
            self._without_since_s = now_s
        elif now_s - self._without_since_s >= CHECK_S:
            self._without_since_s = now_s
            threading.Thread(target=self._look, name="partition-growth", daemon=True).start()
        if not self._has_grown.is_set():
            return False
        self._has_grown.clear()
        return True

    def _look(self) -> None:
        if self._grow():
            self._has_grown.set()
