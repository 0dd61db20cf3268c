"""Adds partitions to the topics of a pool when it has more replicas than partitions.

A replica asks before it joins its groups, and again while it has no partition: replicas that start
together do not see each other. Records stay where they are, and the other replicas keep their
partitions.
"""

import logging
import queue
import threading
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Final

from core.clock import Clock
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.access import gpu_group
from topics.records.catalogue import batches_topic

PARTITIONS_MAX: Final = 1024
"""Partitions of a pool and class at most; further replicas wait for one."""

CHECK_S: Final = 2.0
"""Time without a partition after which a replica asks whether there are enough. It doubles with
each question, up to `CHECK_S_MAX`."""

CHECK_S_MAX: Final = 60.0

REJOIN_S: Final = 15.0
"""Time without a partition, though there are enough, after which a replica joins its group again:
the replica that added them may have ended before its group saw them. A rebalance takes less."""

_LOG = logging.getLogger(__name__)


def partitions_needed(count: int, members: int) -> int:
    """Return how many partitions a topic of `count` should have for so many members.

    It doubles, so that many replicas that start together cause few rebalances.
    """
    while count < min(members, PARTITIONS_MAX):
        count = min(2 * max(1, count), PARTITIONS_MAX)
    return count


class Partitions(Enum):
    """What a replica without a partition found."""

    ADDED = "added"
    ENOUGH = "enough"
    UNKNOWN = "unknown"  # the broker did not answer, or not enough could be added


def add_partitions(admin: TopicAdmin, pool: str, job_class: str, *, joining: int) -> Partitions:
    """Add the partitions that the members of a group, and `joining` ones, need.

    A right that is missing, or a broker that does not answer, is logged: this replica may wait.
    """
    topic = batches_topic(pool, job_class)
    try:
        count = admin.partition_count(topic)
        members = admin.member_count(gpu_group(pool, job_class)) + joining
        needed = partitions_needed(count, members)
        if needed == count:
            return Partitions.ENOUGH if members <= count else Partitions.UNKNOWN
        admin.add_partitions(topic, needed)
    except KafkaUnavailableError as failure:
        _LOG.warning("partitions were not added", extra={"reason": str(failure)})
        return Partitions.UNKNOWN
    _LOG.info("partitions were added", extra={"topic": topic.name, "partitions": needed})
    return Partitions.ADDED


class PartitionRequests:
    """Asks for partitions of one class while this replica has none.

    `should_rejoin` is called by the thread that reads the class; the broker is asked in another
    thread.
    """

    def __init__(self, add: Callable[[], Partitions], clock: Clock) -> None:
        """`add` is `add_partitions`."""
        self._add, self._clock = add, clock
        self._without_since_s: float | None = None
        self._asked_s, self._wait_s = 0.0, CHECK_S
        self._answer: queue.SimpleQueue[Partitions] | None = None  # of the question that is open

    def should_rejoin(self, has_partitions: bool) -> bool:
        """Return whether to leave the group and join it again, so that its leader sees more."""
        now_s = self._clock.monotonic_s()
        if has_partitions or self._without_since_s is None:
            self._without_since_s = None if has_partitions else now_s
            self._asked_s, self._wait_s, self._answer = now_s, CHECK_S, None
            return False
        if self._answer is not None:
            try:
                found = self._answer.get_nowait()
            except queue.Empty:
                return False
            self._answer = None
            is_late = now_s - self._without_since_s >= REJOIN_S
            return found is Partitions.ADDED or (found is Partitions.ENOUGH and is_late)
        if now_s - self._asked_s >= self._wait_s:
            self._asked_s, self._wait_s = now_s, min(2 * self._wait_s, CHECK_S_MAX)
            self._answer = queue.SimpleQueue()
            ask = partial(self._ask, self._answer)
            threading.Thread(target=ask, name="partitions", daemon=True).start()
        return False

    def _ask(self, answer: "queue.SimpleQueue[Partitions]") -> None:
        found = Partitions.UNKNOWN
        try:
            found = self._add()
        finally:
            answer.put(found)
