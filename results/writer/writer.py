"""The loop of the results writer: read, group, write, commit offsets, in this order.

Between rounds it holds uncommitted offsets and open work. When a partition is revoked, both are
dropped with the records read from it: rows already written stay valid, and the new owner reads the
records again.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from core.clock import Clock
from results.metrics import DATABASE_RETRIES, IGNORED_AFTER_CLOSE
from results.settings import WriterSettings
from results.writer.call_billing import CallBill, bills_of
from results.writer.copied_results import CopyWriter
from results.writer.item_writer import ItemWriter
from results.writer.job_closer import JobCloser
from results.writer.open_work import OpenWork, WorkStep
from results.writer.record_groups import Group, grouped, read_entry
from storage.postgres.engines import DATABASE_UNAVAILABLE
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_copies import DeadLetterCopies
from topics.clients.offset_tracker import Partition
from topics.clients.producer import RecordSender
from topics.errors import StaleMemberError
from topics.records.received_record import ReceivedRecord
from topics.records.records import CopiesDue, JobClose, Outcomes

LOG = logging.getLogger(__name__)
T = TypeVar("T")

GROUP: Final = "results-writer"
_IDLE_POLL_S: Final = 0.5  # how soon a stop is noticed
_BUSY_POLL_S: Final = 0.001  # while there is open work
_POLL_INTERVAL_S: Final = 5.0
"""Longest time between two polls. The group removes a member that does not poll for 300 s, and each
new owner would then start the same work again."""

_OPEN_WORK_S_MAX: Final = 5.0  # per round; new records wait meanwhile
_OPEN_ITEMS_MAX: Final = 160_000
"""Backpressure: above it no records are read, else jobs with many copies would add work without
bound."""

_COPIES_S: Final = 5.0  # at the end, for dead letters that are not acknowledged
_BACKOFF_S: Final = 0.1
_BACKOFF_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class OutcomeRouter:
    """Writes outcomes at once; returns steps for closes and copies. Not thread-safe."""

    items: ItemWriter
    closes: JobCloser
    copies: CopyWriter

    def route(self, group: Group) -> list[WorkStep]:
        """Make the outcomes durable; return the further steps.

        Raises one of DATABASE_UNAVAILABLE.
        """
        if isinstance(group.exclusive, JobClose):
            return self.closes.close_steps(group.exclusive)
        if group.exclusive is not None:
            return self.copies.due_copy_steps(group.exclusive)
        return self.copies.copy_steps(group.jobs, self.items.write(group.jobs, group.provenance))


@dataclass(slots=True)
class ResultsWriter:
    """One member of the consumer group; its methods run in one thread."""

    router: OutcomeRouter
    bill: Callable[[Sequence[CallBill]], None]
    count_process_ends: Callable[[Sequence[Outcomes]], None]
    producer: RecordSender
    settings: WriterSettings
    commit_interval_s: float
    clock: Clock
    _read: list[ReceivedRecord] = field(default_factory=list)  # polled, not yet routed
    _open: OpenWork = field(default_factory=OpenWork)
    _finished: dict[Partition, int] = field(default_factory=dict)  # durable, not yet committed
    _lost: set[Partition] = field(default_factory=set)  # revoked in this round
    _paused: frozenset[Partition] = frozenset()
    _polled_s: float = 0.0  # monotonic
    _copies: DeadLetterCopies = field(init=False)

    def __post_init__(self) -> None:
        self._copies = DeadLetterCopies(self.producer)

    def run(self, consumer: GroupConsumer, stop: threading.Event) -> None:
        """Route records until `stop`.

        1. Poll until a group is full or `group_wait_s` has passed.
        2. Write each group in one transaction.
        3. Run steps of open work, for as long as 2 took, within a bound.
        4. Commit the offsets of durable records, every `commit_interval_s`.
        A crash before 4 delivers records again, which changes nothing.

        Raises SchemaTooNewError, KafkaUnavailableError, DeliveryError, and one of
        DATABASE_UNAVAILABLE after `database_wait_s`; offsets are not committed then.
        """
        commit_at = self.clock.monotonic_s()
        while not stop.is_set():
            self._copies.send_waiting()
            self._gather(consumer, stop)
            began_s = self.clock.monotonic_s()
            read, self._read = self._read, []
            self._lost.clear()
            entries = (
                read_entry(record, self._copies)
                for record in read
                if (record.topic, record.partition) not in self._lost
            )
            limits = self.settings
            for group in grouped(
                entries, items_max=limits.group_items_max, bytes_max=limits.group_bytes_max
            ):
                if not self._route(group, consumer, stop):
                    break
                self._finished |= self._owned(group.next_offsets)
            self._run_open_work(consumer, stop, self.clock.monotonic_s() - began_s)
            if self.clock.monotonic_s() >= commit_at:
                self._commit(consumer)
                commit_at = self.clock.monotonic_s() + self.commit_interval_s
        self._copies.wait(_COPIES_S)
        self._commit(consumer)

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Drop records, offsets and work of revoked partitions. The consumer calls this."""
        lost = set(partitions)
        self._read = [r for r in self._read if (r.topic, r.partition) not in lost]
        for partition in lost:
            self._finished.pop(partition, None)
        self._open.discard(lost)
        self._copies.discard(lost)
        self._paused -= lost  # the client assigns them without the pause
        self._lost |= lost

    def _gather(self, consumer: GroupConsumer, stop: threading.Event) -> None:
        """Poll until a group is full or its first record has waited `group_wait_s`."""
        if self._open.item_count > _OPEN_ITEMS_MAX:
            return
        limits = self.settings
        self._pause_only(consumer, self._copies.waiting_partitions & consumer.assigned)
        wait_s = _BUSY_POLL_S if self._open else _IDLE_POLL_S
        full_at = None
        while not stop.is_set():
            count_left = limits.poll_records_max - len(self._read)
            size = sum(len(record.value or b"") for record in self._read)
            if count_left <= 0 or size >= limits.group_bytes_max or wait_s <= 0:
                return
            now = self._poll(consumer, count_left, wait_s)
            if not self._read:
                return
            full_at = full_at or now + limits.group_wait_s
            wait_s = full_at - now

    def _poll(self, consumer: GroupConsumer, records_max: int, wait_s: float) -> float:
        """Read records; return the monotonic time afterwards.

        A poll can revoke partitions, also some whose records it returns.
        """
        found = consumer.poll(records_max, wait_s)
        assigned = consumer.assigned
        self._read += [record for record in found if (record.topic, record.partition) in assigned]
        self._polled_s = self.clock.monotonic_s()
        return self._polled_s

    def _route(self, group: Group, consumer: GroupConsumer, stop: threading.Event) -> bool:
        """Make a group durable and start its further steps; False when `stop` came first.

        Records of revoked partitions are skipped.
        """
        if stop.is_set():
            return False
        if not self._owned(group.offsets):
            return True
        calls = [bill for record in group.calls for bill in bills_of(record)]
        if calls:
            self._with_retries(lambda: self.bill(calls), consumer, stop)
        if group.process_ends:
            self._with_retries(partial(self.count_process_ends, group.process_ends), consumer, stop)
        if steps := self._with_retries(partial(self._write, group), consumer, stop):
            self._with_retries(partial(self._add_work, group, steps), consumer, stop)
        return True

    def _write(self, group: Group) -> Sequence[WorkStep]:
        """Route a group without jobs that have a waiting close or a revoked partition."""
        for job_id in self._open.waiting_jobs & group.jobs.keys():
            IGNORED_AFTER_CLOSE.inc(len(group.jobs.pop(job_id)))
        for job_id in [j for j, p in group.job_partitions.items() if p in self._lost]:
            group.jobs.pop(job_id, None)
        if group.exclusive is None and not group.jobs:
            return ()
        return self.router.route(group)

    def _add_work(self, group: Group, steps: Sequence[WorkStep]) -> None:
        offsets = self._owned(group.offsets)
        if not offsets:
            return
        if group.exclusive is not None and self._must_wait(group.exclusive):
            self._open.add_behind(offsets, group.exclusive.job_id, steps)
        else:
            self._open.add(offsets, group.job_ids, steps, item_count=group.item_count)

    def _must_wait(self, record: JobClose | CopiesDue) -> bool:
        """Whether the record waits: a close for earlier copies, anything for an earlier close.

        A close gives copies without a row its own outcome, and a second read of the log must
        lead to the same rows. Records of other jobs do not wait for the copies, maybe a million.
        """
        if record.job_id in self._open.waiting_jobs:
            return True
        return isinstance(record, JobClose) and self._open.is_open(record.job_id)

    def _owned(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offsets of partitions that were not revoked since their records were read."""
        return {p: offset for p, offset in offsets.items() if p not in self._lost}

    def _run_open_work(self, consumer: GroupConsumer, stop: threading.Event, time_s: float) -> None:
        """Run at least one step of open work, and more for `time_s` within a bound."""
        until_s = self.clock.monotonic_s() + min(time_s, _OPEN_WORK_S_MAX)
        while self._open and not stop.is_set():
            self._with_retries(self._open.run_step, consumer, stop)
            if self.clock.monotonic_s() >= until_s:
                return

    def _with_retries(
        self, write: Callable[[], T], consumer: GroupConsumer, stop: threading.Event
    ) -> T:
        """Run `write` and repeat it while Postgres is unavailable, polling to stay in the group.

        Partitions may be revoked meanwhile. Raises the last error after `database_wait_s` or on
        `stop`.
        """
        give_up_at = self.clock.monotonic_s() + self.settings.database_wait_s
        backoff_s = _BACKOFF_S
        while True:
            try:
                done = write()
            except DATABASE_UNAVAILABLE as failure:
                if stop.is_set() or self.clock.monotonic_s() >= give_up_at:
                    raise
                LOG.warning("database away", extra={"error": type(failure).__name__})
                DATABASE_RETRIES.inc()
                self._poll_paused(consumer, backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)
            else:
                if self.clock.monotonic_s() - self._polled_s >= _POLL_INTERVAL_S:
                    self._poll_paused(consumer, 0)
                return done

    def _poll_paused(self, consumer: GroupConsumer, wait_s: float) -> None:
        """Poll to stay in the group; only a newly assigned partition can return a record."""
        self._pause_only(consumer, consumer.assigned)
        self._poll(consumer, 1, wait_s)

    def _pause_only(self, consumer: GroupConsumer, partitions: frozenset[Partition]) -> None:
        """Pause these partitions and read all others."""
        if pause := partitions - self._paused:
            consumer.pause(pause)
        if resume := self._paused - partitions:
            consumer.resume(resume)
        self._paused = partitions

    def _commit(self, consumer: GroupConsumer) -> None:
        if not self._finished:
            return
        # Offsets are kept until the broker accepts them; `on_revoke` drops those of revoked
        # partitions, and a cooperative rebalance leaves the others assigned.
        offsets = self._copies.committable(self._open.committable(self._finished))
        try:
            if consumer.commit(offsets):
                self._finished = dict(self._finished.items() - offsets.items())
        except StaleMemberError:
            LOG.warning("the group goes on without this member")
