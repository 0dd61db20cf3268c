"""Goal: offsets that the broker did not take are offered again, also when nothing more comes."""

import threading
from collections.abc import Mapping
from typing import Any, cast

from core.clock import SystemClock
from core.ids import new_uuid
from results.closing import JobCloser
from results.deduplicating import CopyWriter
from results.settings import WriterSettings
from results.writer import ResultsWriter
from results.writing import ItemWriter
from tests.unit.results.test_reading import job_ref
from topics.codec import encode, kind_headers
from topics.consumer import LogConsumer
from topics.offsets import Partition
from topics.producer import LogProducer
from topics.received import Received
from topics.records import ItemOutcome, Outcomes


class Member:
    """Has one record; its broker takes the third commit alone."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._records = [outcomes_record()]
        self.offered: list[dict[Partition, int]] = []
        self._polls_left = 10

    def poll(self, count_max: int, timeout_s: float) -> list[Received]:
        self._polls_left -= 1
        if not self._polls_left:
            self._stop.set()
        found, self._records = self._records, []
        return found

    def commit(self, next_offsets: Mapping[Partition, int]) -> bool:
        self.offered.append(dict(next_offsets))
        return len(self.offered) >= 3


class Done:
    """Takes everything at once."""

    def write(self, jobs: Any) -> None: ...

    def flush(self, timeout_s: float) -> None: ...


def outcomes_record() -> Received:
    item = ItemOutcome(0, "c", 1, 200, b"{}")  # type: ignore[arg-type]
    value = encode(Outcomes(job_ref(new_uuid()), [item]))
    return Received("results", 1, 7, b"k", kind_headers(Outcomes), value, 0)


def test_a_commit_that_the_broker_did_not_take_is_repeated() -> None:
    stop = threading.Event()
    member = Member(stop)
    writer = ResultsWriter(
        items=cast(ItemWriter, Done()),
        closer=cast(JobCloser, Done()),
        copies=cast(CopyWriter, Done()),
        bill=lambda _: None,
        producer=cast(LogProducer, Done()),
        settings=WriterSettings(group_wait_s=0),
        commit_interval_s=0,
        clock=SystemClock(),
    )
    writer.run(cast(LogConsumer, member), stop)

    assert member.offered == [{("results", 1): 8}] * 3
