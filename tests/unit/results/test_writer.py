"""Goal: offsets are offered until the broker takes them, and none behind what is not durable."""

import dataclasses
import threading
from collections.abc import Mapping
from functools import partial
from typing import cast
from uuid import UUID

from core.clock import Clock
from core.ids import new_uuid
from core.states import CloseReason
from results.groups import Group
from results.judging import Judge
from results.open_work import Step
from results.settings import WriterSettings
from results.writer import ResultsWriter
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

    def judge(self, group: Group) -> list[Step]:
        return [] if group.alone is None else [partial(self._step, 1)]

    def flush(self, timeout_s: float) -> None: ...

    def _step(self, number: int) -> list[Step]:
        return [partial(self._step, number + 1)] if number < SLICES else []


class Copying(Done):
    """Takes outcomes at once, and copies and closes in steps; remembers when of which job."""

    def __init__(self) -> None:
        self.done: list[tuple[str, UUID]] = []

    def judge(self, group: Group) -> list[Step]:
        (job_id,) = group.job_ids
        if group.alone is not None:
            return [partial(self._of, "close", job_id, 1)]
        self.done.append(("outcomes", job_id))
        return [partial(self._of, "copies", job_id, 1)]

    def _of(self, kind: str, job_id: UUID, number: int) -> list[Step]:
        self.done.append((kind, job_id))
        return [partial(self._of, kind, job_id, number + 1)] if number < SLICES else []


def received(offset: int, record: Outcomes | Close) -> Received:
    return Received("results", 1, offset, b"k", kind_headers(type(record)), encode(record), 0)


def outcomes_record(offset: int, job_id: UUID | None = None) -> Received:
    item = ItemOutcome(0, "c", 1, 200, b"{}")  # type: ignore[arg-type]
    return received(offset, Outcomes(job_ref(job_id or new_uuid()), [item]))


class Still:
    """A clock that stands still: nothing takes time."""

    def monotonic_s(self) -> float:
        return 0.0


def a_writer(judge: Done | None = None) -> ResultsWriter:
    return ResultsWriter(
        judge=cast(Judge, judge or Done()),
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


def test_copies_of_one_job_let_the_results_of_others_pass() -> None:
    stop, judge = threading.Event(), Copying()
    many, other = new_uuid(), new_uuid()
    records = [outcomes_record(7, many), outcomes_record(8, other)]
    settings = WriterSettings(group_wait_s=0, group_items_max=1)
    writer = dataclasses.replace(a_writer(judge), settings=settings)
    writer.run(cast(LogConsumer, Member(stop, *records, polls=3 * SLICES)), stop)

    assert judge.done[:3] == [("outcomes", many), ("copies", many), ("outcomes", other)]
    assert judge.done.count(("copies", many)) == judge.done.count(("copies", other)) == SLICES


def test_a_close_comes_behind_the_copies_before_it() -> None:
    stop, judge = threading.Event(), Copying()
    job_id, other = new_uuid(), new_uuid()
    close = received(9, Close(job_id, 0, CloseReason.CANCELLED))
    records = [outcomes_record(7, job_id), outcomes_record(8, other), close]
    settings = WriterSettings(group_wait_s=0, group_items_max=1)
    writer = dataclasses.replace(a_writer(judge), settings=settings)
    writer.run(cast(LogConsumer, Member(stop, *records, polls=4 * SLICES)), stop)

    its = [kind for kind, job in judge.done if job == job_id]
    assert its == ["outcomes", *["copies"] * SLICES, *["close"] * SLICES]
    assert judge.done.index(("close", job_id)) < len(judge.done) - SLICES  # others take turns
