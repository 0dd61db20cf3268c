"""Goal: an unreadable or revoked record neither blocks a partition nor leaks credit."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import cast
from uuid import uuid4

import pytest

from core.clock import SystemClock
from gpu_consumers.batch_consumer import BatchConsumer, PartitionsCallback
from gpu_consumers.inflight.batch_run import DeliveredBatch
from tests.support.recording_sender import SentRecords
from tests.unit.gpu_consumers.replicas import call_chunk
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_sender import COPIES_BYTES_MAX
from topics.clients.offset_tracker import Partition
from topics.errors import DeliveryError, KafkaUnavailableError
from topics.records.codec import decode, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch, DeadLetter

TOPIC = "batches.p.bulk"
PARTITION: Partition = (TOPIC, 0)
Step = Callable[["Group"], list[ReceivedRecord]]


class Group:
    """A group member whose polls follow a script; after the last one it stops the consumer."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = list(steps)
        self.assigned: set[Partition] = set()
        self.committed: dict[Partition, int] = {}
        self.paused: set[Partition] = set()
        self.stop = threading.Event()
        self.end = 0
        self.revokes_at_close = False
        self.is_assignment_lost = False
        self.unanswered = 0  # requests for end offsets that fail
        self.has_joined = False

    def connect(
        self, on_assign: PartitionsCallback, on_revoke: PartitionsCallback
    ) -> GroupConsumer:
        self._on_assign, self._on_revoke = on_assign, on_revoke
        return cast(GroupConsumer, self)

    def join(self) -> None:
        self.has_joined = True

    def assign(self) -> None:
        assert self.has_joined
        self.paused.discard(PARTITION)  # as the real member does: its client keeps the pause
        self.assigned.add(PARTITION)
        self._on_assign([PARTITION])

    def revoke(self, *, lost: bool = False) -> None:
        self.is_assignment_lost = lost
        self._on_revoke([PARTITION])
        self.is_assignment_lost = False
        self.assigned.discard(PARTITION)

    def poll(self, count_max: int, timeout_s: float) -> list[ReceivedRecord]:
        if not self._steps:
            self.stop.set()
            return []
        return self._steps.pop(0)(self)

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        if self.unanswered:
            self.unanswered -= 1
            raise KafkaUnavailableError
        return dict.fromkeys(partitions, self.end)

    def commit(self, next_offsets: Mapping[Partition, int]) -> bool:
        self.committed |= next_offsets
        return True

    def pause(self, partitions: Iterable[Partition]) -> None:
        self.paused |= set(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        self.paused -= set(partitions)

    def close(self) -> None:
        if self.revokes_at_close:
            self.revoke()


def dead_letters(failure: BaseException | None = None) -> SentRecords:
    return SentRecords(acknowledges=True, failure=failure)


def record(offset: int, value: bytes | None = None) -> ReceivedRecord:
    written = encode(Batch(uuid4(), "b", [])) if value is None else value
    return ReceivedRecord(TOPIC, 0, offset, None, kind_headers(Batch), written, 0)


def revoked(*, lost: bool = False) -> Step:
    def step(group: Group) -> list[ReceivedRecord]:
        group.revoke(lost=lost)
        return []

    return step


def consumer_of(
    group: Group,
    letters: SentRecords | None = None,
    *,
    in_flight_max: int = 10,
    commit_interval_s: float = 60,
    keeps_calls: bool = False,
) -> BatchConsumer:
    return BatchConsumer(
        group.connect,
        letters or dead_letters(),
        in_flight_max=in_flight_max,
        commit_interval_s=commit_interval_s,
        clock=SystemClock(),
        keeps_calls=keeps_calls,
    )


def run(group: Group, letters: SentRecords, *, in_flight_max: int = 10) -> tuple[list[int], int]:
    """Finish every batch at once; return the delivered offsets and the count of epochs."""
    consumer = consumer_of(group, letters, in_flight_max=in_flight_max, commit_interval_s=0)
    delivered: list[int] = []
    epochs: list[list[Partition]] = []

    def deliver(delivery: DeliveredBatch) -> None:
        delivered.append(delivery.record.offset)
        consumer.mark_finished(delivery.record, delivery.generation)

    consumer.run(deliver, epochs.append, group.stop)
    return delivered, len(epochs)


def assigned(*records: ReceivedRecord) -> Step:
    def step(group: Group) -> list[ReceivedRecord]:
        group.assign()
        return list(records)

    return step


def test_a_record_revoked_by_its_own_poll_blocks_no_later_offset() -> None:
    def lost(group: Group) -> list[ReceivedRecord]:
        group.revoke()
        return [record(5)]

    group = Group([assigned(record(4)), lost, assigned(record(3), record(6))])
    delivered, _ = run(group, dead_letters(), in_flight_max=1)

    assert delivered == [4, 3, 6]
    assert group.committed == {PARTITION: 7}
    assert group.paused == set()


def test_a_full_partition_that_returns_is_read_and_paused_again() -> None:
    seen: list[bool] = []

    def observe(group: Group) -> list[ReceivedRecord]:
        seen.append(PARTITION in group.paused)
        return []

    def moved(group: Group) -> list[ReceivedRecord]:
        group.revoke()
        seen.append(PARTITION in group.paused)
        return []

    full = assigned(record(4), record(5))
    group = Group(
        [full, observe, moved, assigned(), observe, lambda _: [record(4), record(5)], observe]
    )
    consumer = consumer_of(group, in_flight_max=2)
    consumer.run(lambda _: None, lambda _: None, group.stop)

    assert seen == [True, True, False, True]


def test_is_committed_is_reset_by_a_new_assignment() -> None:
    seen: list[list[bool]] = []

    def observe(group: Group) -> list[ReceivedRecord]:
        seen.append([consumer.is_committed(record(offset)) for offset in (3, 4, 5)])
        return []

    group = Group([assigned(record(4)), observe, observe, assigned(), observe])
    consumer = consumer_of(group, commit_interval_s=0)
    consumer.run(
        lambda d: consumer.mark_finished(d.record, d.generation), lambda _: None, group.stop
    )

    assert seen == [[True, True, False]] * 2 + [[False] * 3]


def test_an_unreadable_batch_becomes_a_dead_letter_and_starts_a_new_epoch() -> None:
    group, letters = Group([assigned(record(0)), lambda _: [record(1, b"\xc1")]]), dead_letters()
    delivered, epochs = run(group, letters)

    assert (delivered, epochs) == ([0], 2)
    (sent,) = letters.records
    letter = decode(DeadLetter, sent.value, sent.headers)
    assert (letter.partition, letter.code, letter.value) == (0, "record_unreadable", b"\xc1")
    assert group.committed == {PARTITION: 2}


def test_too_many_bytes_of_dead_letters_pause_their_partition_until_they_are_sent() -> None:
    letters = SentRecords(acknowledges=True, unavailable={("dead_letters", 0)})
    paused: list[bool] = []

    def observe(group: Group) -> list[ReceivedRecord]:
        paused.append(PARTITION in group.paused)
        return []

    def restore(group: Group) -> list[ReceivedRecord]:
        letters.restore()
        return []

    torn = b"\xc1" * COPIES_BYTES_MAX
    steps = [assigned(record(0, torn), record(1, torn), record(2)), observe, restore, observe]
    group = Group([*steps, observe])
    delivered, _ = run(group, letters)
    assert delivered == [2]
    assert paused == [True, False, False]
    assert len(letters.records) == 2
    assert group.committed == {PARTITION: 3}


def test_a_lost_dead_letter_ends_the_process() -> None:
    group = Group([assigned(record(0, b"\xc1")), lambda _: []])
    with pytest.raises(DeliveryError):
        run(group, dead_letters(DeliveryError()))

    assert group.committed == {}


def calls(*durable: bool) -> Step:
    """Assign the partition with one call each; their offsets start at 4."""
    chunks = [call_chunk(durable=is_durable) for is_durable in durable]
    batches = [encode(Batch(uuid4(), "b", [chunk])) for chunk in chunks]
    return assigned(*(record(offset, batch) for offset, batch in enumerate(batches, 4)))


def leaving(group: Group) -> list[ReceivedRecord]:
    group.revokes_at_close = True
    return []


@pytest.mark.parametrize(
    ("steps", "committed"),
    [
        ([calls(False, False), revoked()], {PARTITION: 6}),
        ([calls(False, True), revoked()], {PARTITION: 5}),
        ([calls(False), revoked(lost=True), calls(True), revoked()], {}),
        ([calls(False), leaving], {}),
    ],
    ids=["revoked", "durable", "lost and returned", "leaving"],
)
def test_running_calls_are_committed_at_a_revocation_unless_durable(
    steps: list[Step], committed: dict[Partition, int]
) -> None:
    group = Group(steps)
    consumer_of(group, keeps_calls=True).run(lambda _: None, lambda _: None, group.stop)

    assert group.committed == committed


@pytest.mark.parametrize(
    ("end", "unanswered", "redelivered"), [(5, 0, [4]), (5, 1, [4]), (0, 2, [4, 5])]
)
def test_records_from_before_the_assignment_or_with_unknown_ends_are_redelivered(
    end: int, unanswered: int, redelivered: list[int]
) -> None:
    group = Group([assigned(record(4), record(5)), lambda _: [record(6)]])
    group.end, group.unanswered = end, unanswered
    consumer = consumer_of(group, keeps_calls=True)
    found: list[int] = []
    assignments: list[list[Partition]] = []

    def deliver(delivery: DeliveredBatch) -> None:
        assert delivery.is_redelivered or assignments
        if delivery.is_redelivered:
            found.append(delivery.record.offset)
        consumer.mark_finished(delivery.record, delivery.generation)

    consumer.run(deliver, assignments.append, group.stop)
    assert found == redelivered


@pytest.mark.parametrize(("lost", "committed"), [(False, {PARTITION: 5}), (True, {})])
def test_a_batch_finished_during_a_revocation_is_committed_unless_lost(
    lost: bool, committed: dict[Partition, int]
) -> None:
    """A member commits nothing of lost partitions: they have another owner already."""

    group = Group([assigned(record(4)), revoked(lost=lost)])
    consumer = consumer_of(group)
    running: list[DeliveredBatch] = []
    revocations: list[bool] = []

    def on_revoke(partitions: list[Partition], is_lost: bool) -> None:
        assert partitions == [PARTITION]
        revocations.append(is_lost)
        consumer.mark_finished(running[0].record, running[0].generation)

    consumer.run(running.append, lambda _: None, group.stop, on_revoke)

    assert revocations == [lost]
    assert group.committed == committed


def test_a_member_joins_when_it_runs_after_what_precedes_it() -> None:
    """A replica in standby is complete but for its membership."""
    group = Group([])
    preceding: list[bool] = []
    consumer = BatchConsumer(
        group.connect,
        dead_letters(),
        in_flight_max=1,
        commit_interval_s=60,
        clock=SystemClock(),
        before_join=lambda: preceding.append(group.has_joined),
    )
    assert not group.has_joined
    consumer.run(lambda _: None, lambda _: None, group.stop)
    assert (preceding, group.has_joined) == ([False], True)
