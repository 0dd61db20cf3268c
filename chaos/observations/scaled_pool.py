"""What a scaled pool was told to be, and what it was: topics, and samples of its host."""

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from autoscaler.actuators.socket_messages import PoolAnswer
from autoscaler.signals.topic_inputs import decoded
from chaos.errors import DrillError
from core.errors import MillraceError
from topics.records.catalogue import CAPACITY, SCALING, Topic
from topics.records.records import Capacity, Record
from topics.records.scaling import AutoscalerEpoch, PoolScaling
from topics.settings import KafkaSettings
from topics.tail_readers.topic_tail_reader import TopicTailReader

SAMPLE_S: Final = 0.1
_POLL_S: Final = 0.2
_PAUSE_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSample:
    """A pool at a moment."""

    at_s: float  # epoch seconds
    ordered: int
    existing: frozenset[str]  # replicas without those that drain, by id
    epoch: int


class ScaledPoolWatch:
    """Reads `scaling` and `capacity`, and asks the host about the pool, in threads."""

    def __init__(
        self, kafka: KafkaSettings, pool: str, observe: Callable[[str], PoolAnswer]
    ) -> None:
        """`observe` asks the host; it raises DrillError."""
        self._kafka, self._pool, self._observe = kafka, pool, observe
        self.samples: list[PoolSample] = []
        self.decided_s: dict[int, float] = {}  # epoch to its first record about the pool
        self.epoch = 0  # the highest one
        self.target: PoolScaling | None = None  # the newest of the highest epoch
        self.warm: set[str] = set()  # replicas that were warm once

    def read_scaling(self, stop: threading.Event) -> None:
        """Read `scaling` until `stop`."""
        self._read(SCALING, stop)

    def read_capacity(self, stop: threading.Event) -> None:
        """Read `capacity` until `stop`."""
        self._read(CAPACITY, stop)

    def sample(self, stop: threading.Event) -> None:
        """Take a sample at each interval until `stop`; a host that is busy is asked again."""
        while not stop.wait(SAMPLE_S):
            try:
                answer = self._observe(self._pool)
            except DrillError:
                continue
            self.samples.append(
                PoolSample(
                    at_s=time.time(),
                    ordered=sum(kind.replicas for kind in answer.kinds),
                    existing=frozenset(one.replica_id for one in answer.replicas),
                    epoch=answer.epoch,
                )
            )

    def _read(self, topic: Topic, stop: threading.Event) -> None:
        """Read a topic from its start; after an outage again."""
        while not stop.is_set():
            try:
                with closing(
                    TopicTailReader(self._kafka, topic, client_id="chaos-scaling")
                ) as reader:
                    while not stop.is_set():
                        for record in decoded(reader.poll(_POLL_S), topic.records):
                            self._note(record)
            except MillraceError:
                stop.wait(_PAUSE_S)

    def _note(self, record: Record) -> None:
        if isinstance(record, AutoscalerEpoch):
            self.epoch = max(self.epoch, record.epoch)
        elif isinstance(record, PoolScaling) and record.pool == self._pool:
            self.decided_s.setdefault(record.epoch, record.at_s)
            if self.target is None or record.epoch >= self.target.epoch:
                self.target = record
        elif isinstance(record, Capacity) and record.lifecycle == "warm":
            self.warm.add(record.replica_id)
