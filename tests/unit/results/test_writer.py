"""Goal: offsets are committed until accepted, and never past records that are not durable."""

import itertools
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
import sqlalchemy.exc

import results.writer.writer
from core.ids import new_uuid
from core.states import CloseReason
from results.settings import WriterSettings
from results.writer.open_work import ROUND_ROBIN_MAX, OpenWork, WorkStep
from results.writer.record_groups import Group
from results.writer.writer import OutcomeRouter, ResultsWriter
from tests.support.clock import ManualClock
from tests.support.recording_sender import SentRecords
from tests.unit.batcher.builders import job_ref
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_sender import COPIES_BYTES_MAX
from topics.clients.offset_tracker import Partition
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import ItemOutcome, JobClose, Outcomes

SLICES = 5


class FakeConsumer:
    """A consumer with given records; its broker accepts the third commit."""

    def __init__(self, *records: ReceivedRecord, polls: int = 10) -> None:
        self.stop = threading.Event()
        self._records = list(records)
        self.offered: list[dict[Partition, int]] = []
        self._polls_left = polls
        self.assigned = frozenset({("results", 1)})
        self.is_paused = False
        self.on_poll: Callable[[], None] = lambda: None

    def poll(self, count_max: int, timeout_s: float) -> list[ReceivedRecord]:
        self.on_poll()
        self._polls_left -= 1
        if not self._polls_left:
            self.stop.set()
        if self.is_paused:
            return []
        found, self._records = self._records[:count_max], self._records[count_max:]
        return found

    def add(self, *records: ReceivedRecord) -> None:
        self._records += records

    def pause(self, partitions: frozenset[Partition]) -> None:
        self.is_paused = partitions == self.assigned

    def resume(self, partitions: frozenset[Partition]) -> None:
        self.is_paused = not partitions

    def commit(self, next_offsets: Mapping[Partition, int]) -> bool:
        self.offered.append(dict(next_offsets))
        return len(self.offered) >= 3


class ImmediateRouter:
    """A router that writes everything at once."""

    def route(self, group: Group) -> list[WorkStep]:
        return [] if group.exclusive is None else [partial(self._step, 1)]

    def _step(self, number: int) -> list[WorkStep]:
        return [partial(self._step, number + 1)] if number < SLICES else []


class SteppedRouter(ImmediateRouter):
    """A router with steps for copies and closes, which records the order of the work."""

    def __init__(self) -> None:
        self.done: list[tuple[str, UUID]] = []

    def route(self, group: Group) -> list[WorkStep]:
        (job_id,) = group.job_ids
        if group.exclusive is not None:
            return [partial(self._of, "close", job_id, 1)]
        self.done.append(("outcomes", job_id))
        return [partial(self._of, "copies", job_id, 1)]

    def _of(self, kind: str, job_id: UUID, number: int) -> list[WorkStep]:
        self.done.append((kind, job_id))
        return [partial(self._of, kind, job_id, number + 1)] if number < SLICES else []


class SlowRouter(SteppedRouter):
    """A router whose steps take seconds of its own clock."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.clock, self._step_s = ManualClock(), step_s

    def _of(self, kind: str, job_id: UUID, number: int) -> list[WorkStep]:
        self.clock.advance(self._step_s)
        return super()._of(kind, job_id, number)


class FailingRouter(SteppedRouter):
    """A router that loses Postgres before every second step of copies."""

    def __init__(self) -> None:
        super().__init__()
        self._is_failing = False

    def _of(self, kind: str, job_id: UUID, number: int) -> list[WorkStep]:
        if kind == "copies" and number > 1:
            self._is_failing = not self._is_failing
            if self._is_failing:
                raise sqlalchemy.exc.TimeoutError
        return super()._of(kind, job_id, number)


def received(offset: int, record: Outcomes | JobClose) -> ReceivedRecord:
    return ReceivedRecord("results", 1, offset, b"k", kind_headers(type(record)), encode(record), 0)


def outcomes_record(offset: int, job_id: UUID | None = None) -> ReceivedRecord:
    item = ItemOutcome(0, "c", 1, 200, b"{}")  # type: ignore[arg-type]
    return received(offset, Outcomes(job_ref(job_id=job_id or new_uuid()), [item]))


def close_record(offset: int, job_id: UUID) -> ReceivedRecord:
    return received(offset, JobClose(job_id, 0, CloseReason.CANCELLED))


def new_writer(
    router: ImmediateRouter | None = None,
    *,
    clock: ManualClock | None = None,
    log: SentRecords | None = None,
    **settings: float,
) -> ResultsWriter:
    return ResultsWriter(
        router=cast(OutcomeRouter, router or ImmediateRouter()),
        bill=lambda _: None,
        count_process_ends=lambda _: None,
        producer=log or SentRecords(),
        settings=WriterSettings.model_validate({"group_wait_s": 0, **settings}),
        commit_interval_s=0,
        clock=clock or ManualClock(),
    )


def run(writer: ResultsWriter, *records: ReceivedRecord, polls: int = 10) -> FakeConsumer:
    """Run a writer for some polls of these records."""
    return run_with(writer, FakeConsumer(*records, polls=polls))


def run_with(writer: ResultsWriter, consumer: FakeConsumer) -> FakeConsumer:
    writer.run(cast(GroupConsumer, consumer), consumer.stop)
    return consumer


def test_refused_commit_is_repeated() -> None:
    consumer = run(new_writer(), outcomes_record(7))

    assert consumer.offered == [{("results", 1): 8}] * 3


def test_an_unacknowledged_dead_letter_holds_the_offset_of_its_record_alone() -> None:
    log = SentRecords(acknowledges=True, unavailable={("dead_letters", 0)})
    unreadable = msgspec.structs.replace(outcomes_record(8), value=b"x")
    other = msgspec.structs.replace(outcomes_record(4), partition=2)
    consumer = FakeConsumer(outcomes_record(7), unreadable, outcomes_record(9), other, polls=6)
    consumer.assigned = frozenset({("results", 1), ("results", 2)})

    def restore() -> None:
        if len(consumer.offered) == 3:  # all before
            log.restore()

    consumer.on_poll = restore
    run_with(new_writer(log=log), consumer)

    assert consumer.offered[:3] == [{("results", 1): 8, ("results", 2): 5}] * 3
    assert consumer.offered[3:] == [{("results", 1): 10}]
    assert [record.topic for record in log.records] == ["dead_letters"]  # sent once


def test_too_many_bytes_of_dead_letters_pause_their_partition_until_they_are_sent() -> None:
    log = SentRecords(acknowledges=True, unavailable={("dead_letters", 0)})
    torn = [
        msgspec.structs.replace(outcomes_record(offset), value=b"x" * COPIES_BYTES_MAX)
        for offset in (7, 8)
    ]
    consumer = FakeConsumer(*torn, polls=6)
    paused: list[bool] = []

    def on_poll() -> None:
        paused.append(consumer.is_paused)
        if len(paused) == 3:
            consumer.add(outcomes_record(9))
            log.restore()

    consumer.on_poll = on_poll
    run_with(new_writer(log=log, poll_records_max=2), consumer)
    assert paused == [False, True, True, False, False, False]
    assert len(log.records) == 2
    assert consumer.offered[-1] == {("results", 1): 10}


def test_close_that_waits_for_copies_blocks_no_other_job() -> None:
    router, job_id, other = SteppedRouter(), new_uuid(), new_uuid()
    records = [outcomes_record(7, job_id), close_record(8, job_id), outcomes_record(9, job_id)]
    records += [close_record(10, job_id), outcomes_record(11, other)]
    consumer = run(new_writer(router, group_items_max=1), *records, polls=6 * SLICES)

    its = [kind for kind, job in router.done if job == job_id]
    assert its == ["outcomes", *["copies"] * SLICES, *["close"] * 2 * SLICES]
    assert router.done[:3] == [("outcomes", job_id), ("copies", job_id), ("outcomes", other)]
    assert router.done.count(("copies", other)) == SLICES
    close_began = router.done.index(("close", job_id))
    assert ("copies", other) in router.done[:close_began]  # interleaved with other jobs
    offered = [offsets["results", 1] for offsets in consumer.offered]
    assert offered == sorted(offered)
    assert list(dict.fromkeys(offered)) == [7, 8, 10, 12]


def test_many_long_closes_block_neither_jobs_nor_polls() -> None:
    router, other = SlowRouter(2.0), new_uuid()
    closes = [close_record(n, new_uuid()) for n in range(2 * ROUND_ROBIN_MAX)]
    writer = new_writer(router, clock=router.clock, poll_records_max=len(closes))
    consumer = FakeConsumer(*closes, outcomes_record(len(closes), other), polls=10_000)
    polled_s = [0.0]

    def look() -> None:
        polled_s.append(router.clock.now_s)
        if router.done.count(("close", other)) or len(router.done) >= len(closes) * SLICES:
            consumer.stop.set()

    consumer.on_poll = look
    run_with(writer, consumer)

    gaps = [later - sooner for sooner, later in itertools.pairwise(polled_s)]
    assert max(gaps) < 10
    at = router.done.index(("outcomes", other))
    assert at < len(closes) + 10  # a few steps after each close has begun


def test_waiting_close_of_a_revoked_partition_is_discarded() -> None:
    router, job_id = FailingRouter(), new_uuid()
    writer = new_writer(router, group_items_max=1)
    consumer = FakeConsumer(outcomes_record(7, job_id), close_record(8, job_id), polls=5)

    def lose() -> None:
        if router.done:
            consumer.assigned = frozenset()
            writer.on_revoke([("results", 1)])

    consumer.on_poll = lose
    run_with(writer, consumer)

    assert router.done == [("outcomes", job_id), ("copies", job_id)]
    assert all(("results", 1) not in offsets for offsets in consumer.offered)


def test_records_after_a_close_of_a_revoked_partition_are_skipped() -> None:
    """Not even in one group with records of an assigned partition."""
    router, job_id, other = SteppedRouter(), new_uuid(), new_uuid()
    kept = msgspec.structs.replace(outcomes_record(0, other), partition=2)
    writer = new_writer(router)
    lost = [outcomes_record(7, job_id), close_record(8, job_id), outcomes_record(9, job_id)]
    consumer = FakeConsumer(*lost, kept, polls=2)
    consumer.assigned = frozenset({("results", 1), ("results", 2)})

    begin = OpenWork.add_behind

    def losing(*given: Any) -> None:
        begin(*given)
        writer.on_revoke([("results", 1)])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(OpenWork, "add_behind", losing)
        run_with(writer, consumer)

    assert router.done[:3] == [("outcomes", job_id), ("copies", job_id), ("outcomes", other)]
    assert ("outcomes", job_id) not in router.done[1:]


def test_records_revoked_while_postgres_is_unavailable_are_skipped() -> None:
    lost, other = new_uuid(), new_uuid()

    class FailingOnce(SteppedRouter):
        def route(self, group: Group) -> list[WorkStep]:
            if lost in group.jobs:
                writer.on_revoke([("results", 1)])
                raise sqlalchemy.exc.TimeoutError
            return super().route(group)

    router = FailingOnce()
    writer = new_writer(router)
    kept = msgspec.structs.replace(outcomes_record(0, other), partition=2)
    consumer = FakeConsumer(outcomes_record(7, lost), kept, polls=4)
    consumer.assigned = frozenset({("results", 1), ("results", 2)})
    run_with(writer, consumer)

    assert router.done[0] == ("outcomes", other)
    assert ("outcomes", lost) not in router.done


def test_records_revoked_during_a_poll_are_dropped() -> None:
    router, lost, other = SteppedRouter(), new_uuid(), new_uuid()
    writer = new_writer(router, group_wait_s=1, poll_records_max=2)
    consumer = FakeConsumer(outcomes_record(7, lost))
    polls: list[None] = []

    def lose() -> None:
        polls.append(None)
        if len(polls) == 2:  # in the same round, below `poll_records_max`
            writer.on_revoke([("results", 1)])
            consumer.add(outcomes_record(8, other), outcomes_record(9, other))

    consumer.on_poll = lose
    run_with(writer, consumer)

    assert {job for _, job in router.done} == {other}


def test_too_many_open_items_pause_reading() -> None:
    router, other = SteppedRouter(), new_uuid()
    records = [*map(outcomes_record, range(3)), outcomes_record(3, other)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(results.writer.writer, "_OPEN_ITEMS_MAX", 2)
        run(new_writer(router, group_items_max=1, poll_records_max=3), *records)

    at = router.done.index(("outcomes", other))
    ended = [job for kind, job in router.done[:at] if kind == "copies"]
    assert max(map(ended.count, ended)) == SLICES
