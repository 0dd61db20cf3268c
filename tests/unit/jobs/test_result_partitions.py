"""Goal: jobs on an unavailable partition of `results` fill no window and are not emitted again."""

from typing import cast
from uuid import UUID

from jobs.expansion.load_sums import JobLoad
from jobs.expansion.result_partitions import ResultPartitions
from topics.clients.admin import TopicAdmin
from topics.errors import KafkaUnavailableError
from topics.records.catalogue import Topic


class Broker:
    """Answers which partitions are unavailable."""

    def __init__(self) -> None:
        self.unavailable: frozenset[int] | None = frozenset()

    def unavailable_partitions(self, topic: Topic) -> frozenset[int]:
        assert topic.name == "results"
        if self.unavailable is None:
            raise KafkaUnavailableError
        return self.unavailable


def test_jobs_of_unavailable_partitions_are_left_out_until_they_return() -> None:
    broker, partitions = Broker(), ResultPartitions()
    loads = [JobLoad(UUID(int=n), UUID(int=1), "p", 10, 5, 0) for n in range(16)]

    def available() -> list[int]:
        partitions.update(cast(TopicAdmin, broker))
        return [load.job_id.int for load in partitions.available(loads)]

    assert available() == [*range(16)]
    broker.unavailable = frozenset({3})
    assert available() == [n for n in range(16) if n not in (3, 11)]
    broker.unavailable = None  # no broker answers
    assert available() == [n for n in range(16) if n not in (3, 11)]
    broker.unavailable = frozenset()
    assert available() == [*range(16)]
