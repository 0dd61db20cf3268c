"""Goal: no offset passes an unreadable event whose copy may be lost, and nothing else waits."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import sqlalchemy as sa

from results.webhooks.events.event_reader import JobEventReader
from tests.support.recording_sender import SentRecords
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_sender import COPIES_BYTES_MAX
from topics.clients.offset_tracker import Partition
from topics.records.received_record import ReceivedRecord

DEAD_LETTERS = ("dead_letters", 0)
FIRST = ("events", 0)


class NoEngine:
    """An engine for polls without a readable event."""

    def begin(self) -> AbstractContextManager[None]:
        return nullcontext()


class FakeConsumer:
    """A consumer with given offsets of unreadable records; its broker may refuse commits."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.committed: list[dict[Partition, int]] = []
        self.accepts = True
        self.paused: set[Partition] = set()
        self.value = b"x"

    def poll(self, count_max: int, timeout_s: float) -> list[ReceivedRecord]:
        if FIRST in self.paused:
            return []
        offsets, self.offsets = self.offsets[:count_max], self.offsets[count_max:]
        return [ReceivedRecord(*FIRST, offset, b"k", [], self.value, 0) for offset in offsets]

    def pause(self, partitions: Iterable[Partition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self.paused -= set(partitions)

    def commit(self, next_offsets: Mapping[Partition, int]) -> bool:
        self.committed.append(dict(next_offsets))
        return self.accepts


def new_reader(log: SentRecords) -> tuple[JobEventReader, FakeConsumer]:
    consumer = FakeConsumer()
    engine, group = cast(sa.Engine, NoEngine()), cast(GroupConsumer, cast(Any, consumer))
    return JobEventReader(engine, group, log, lambda: None), consumer


def test_an_offset_waits_for_the_copy_of_its_record() -> None:
    log = SentRecords(acknowledges=True)
    reader, consumer = new_reader(log)
    consumer.offsets = [3]
    reader.run_once()
    log.unavailable.add(DEAD_LETTERS)
    consumer.offsets = [4, 5]
    reader.run_once()
    reader.run_once()
    assert consumer.committed == [{FIRST: 4}]

    log.restore()
    reader.run_once()
    assert consumer.committed == [{FIRST: 4}, {FIRST: 6}]
    assert len(log.records) == 3  # one copy of each


def test_a_refused_commit_is_repeated_without_new_records() -> None:
    reader, consumer = new_reader(SentRecords(acknowledges=True))
    consumer.accepts, consumer.offsets = False, [3]
    reader.run_once()
    consumer.accepts = True
    reader.run_once()
    reader.run_once()
    assert consumer.committed == [{FIRST: 4}] * 2


def test_offsets_of_revoked_partitions_are_not_committed() -> None:
    log = SentRecords(acknowledges=True, unavailable={DEAD_LETTERS})
    reader, consumer = new_reader(log)
    consumer.offsets = [3]
    reader.run_once()
    reader.on_revoke([FIRST])
    log.restore()
    reader.run_once()
    assert consumer.committed == [{FIRST: 3}]


def test_a_partition_with_too_many_bytes_of_dead_letters_is_paused_until_they_are_sent() -> None:
    log = SentRecords(acknowledges=True, unavailable={DEAD_LETTERS})
    reader, consumer = new_reader(log)
    consumer.value = b"x" * COPIES_BYTES_MAX
    consumer.offsets = [3, 4]
    reader.run_once()
    consumer.offsets = [5]
    reader.run_once()
    assert (consumer.paused, len(log.records)) == ({FIRST}, 1)

    log.restore()
    for _ in range(3):
        reader.run_once()
    assert (consumer.paused, len(log.records)) == (set(), 3)
    assert consumer.committed[-1] == {FIRST: 6}


def test_a_partition_that_returns_is_not_taken_for_paused() -> None:
    log = SentRecords(acknowledges=True, unavailable={DEAD_LETTERS})
    reader, consumer = new_reader(log)
    consumer.value = b"x" * COPIES_BYTES_MAX
    consumer.offsets = [3, 4]
    for _ in range(2):
        reader.run_once()
    assert consumer.paused == {FIRST}
    reader.on_revoke([FIRST])
    consumer.paused.clear()  # as the real member does
    consumer.offsets = [3, 4]
    for _ in range(2):
        reader.run_once()
    assert consumer.paused == {FIRST}
