"""Goal: offsets are offered until the broker takes them, and none behind what is not durable."""

import threading
from collections.abc import Mapping
from typing import Any, cast

from core.clock import Clock
from core.ids import new_uuid
from core.states import CloseReason
from results.closing import JobCloser
from results.deduplicating import CopyWriter
from results.open_closes import OpenCloses
from results.settings import WriterSettings
from results.writer import ResultsWriter
from results.writing import ItemWriter
from tests.unit.results.test_reading import job_ref
from topics.codec import encode, kind_headers
from topics.consumer import LogConsumer
from topics.offsets import Partition
from topics.producer import LogProducer
from topics.received import Received
from topics.records import Close, ItemOutcome, Outcomes

SLICES = 5


class Member:
    """Has some records at once; its broker takes no commit before the third."""

    def __init__(self, stop: threading.Event, *records: Received, polls: int = 10) -> None:
        self._stop = stop
        self._records = list(records)
        self.offered: list[dict[Partition, int]] = []
        self._polls_left = polls

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

    def step(self, close: Close, first: int) -> int | None:
        return first + 1 if first < SLICES - 1 else None


def received(offset: int, record: Outcomes | Close) -> Received:
    return Received("results", 1, offset, b"k", kind_headers(type(record)), encode(record), 0)


def outcomes_record(offset: int) -> Received:
    item = ItemOutcome(0, "c", 1, 200, b"{}")  # type: ignore[arg-type]
    return received(offset, Outcomes(job_ref(new_uuid()), [item]))


class Still:
    """A clock that stands still: nothing takes time."""

    def monotonic_s(self) -> float:
        return 0.0


def a_writer() -> ResultsWriter:
    return ResultsWriter(
        items=cast(ItemWriter, Done()),
        closes=OpenCloses(cast(JobCloser, Done())),
        copies=cast(CopyWriter, Done()),
        bill=lambda _: None,
        producer=cast(LogProducer, Done()),
        settings=WriterSettings(group_wait_s=0),
        commit_interval_s=0,
        clock=cast(Clock, Still()),
    )


def test_a_commit_that_the_broker_did_not_take_is_repeated() -> None:
    stop = threading.Event()
    member = Member(stop, outcomes_record(7))
    a_writer().run(cast(LogConsumer, member), stop)

    assert member.offered == [{("results", 1): 8}] * 3


def test_a_long_close_holds_its_offset_and_nothing_else() -> None:
    stop = threading.Event()
    close = received(7, Close(new_uuid(), 0, CloseReason.CANCELLED))
    member = Member(stop, close, outcomes_record(8), polls=2 * SLICES)
    a_writer().run(cast(LogConsumer, member), stop)

    offered = [offsets["results", 1] for offsets in member.offered]
    assert set(offered) == {7, 9}
    assert offered == sorted(offered)
