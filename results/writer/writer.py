"""The loop of the results writer: read, group, write, commit offsets, in this order.

Between rounds it holds offsets and open work. Of a revoked partition both are forgotten, and what
was read of it is left alone: what was written stays right, and the rest comes to the new owner.
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
from results.writer.open_work import OpenWork, WorkStep
from results.writer.outcome_router import OutcomeRouter
from results.writer.record_groups import Group, grouped
from results.writer.record_reader import read_entry
from storage.postgres.engines import DATABASE_AWAY
from topics.clients.consumer import LogConsumer
from topics.clients.offsets import Partition
from topics.clients.producer import LogProducer
from topics.errors import StaleMemberError
from topics.records.received import Received
from topics.records.records import Close, CopiesDue

LOG = logging.getLogger(__name__)
T = TypeVar("T")

GROUP: Final = "results-writer"
_IDLE_POLL_S: Final = 0.5  # how soon a stop is noticed
_BUSY_POLL_S: Final = 0.001  # while there is work to go on with
_STAY_S: Final = 5.0
"""Longest pause between two polls. The group goes on without a member that does not poll for 300 s,
and each owner after it would begin the same work again."""

_SHARE_S_MAX: Final = 5.0  # of open work in one round: so long do the records of others wait
_OPEN_ITEMS_MAX: Final = 160_000
"""Beyond, new records wait: else a job whose items have many copies would open work without end."""

_FLUSH_S: Final = 30.0
_BACKOFF_S: Final = 0.1
_BACKOFF_S_MAX: Final = 5.0


@dataclass(slots=True)
class ResultsWriter:
    """One member of the group; its methods run in one thread."""

    router: OutcomeRouter
    bill: Callable[[Sequence[CallBill]], None]
    producer: LogProducer
    settings: WriterSettings
    commit_interval_s: float
    clock: Clock
    _read: list[Received] = field(default_factory=list)  # polled, not yet judged
    _open: OpenWork = field(default_factory=OpenWork)
    _finished: dict[Partition, int] = field(default_factory=dict)  # durable, not yet committed
    _lost: set[Partition] = field(default_factory=set)  # in this round: others judge what was read
    _is_paused: bool = False
    _polled_s: float = 0.0  # monotonic

    def run(self, consumer: LogConsumer, stop: threading.Event) -> None:
        """Judge records until `stop`.

        1. Poll until the group is full or has waited. 2. Write each group in a transaction. 3. Go
        on with what is open, for as long as 2 took but for a bound. 4. Commit the offsets of what
        is durable. A crash before that delivers records again, which changes nothing.

        Raises SchemaTooNewError, LogUnavailableError, DeliveryError, and one of DATABASE_AWAY after
        `database_wait_s`: the offsets stay where they are.
        """
        commit_at = self.clock.monotonic_s()
        while not stop.is_set():
            self._gather(consumer, stop)
            began_s = self.clock.monotonic_s()
            read, self._read = self._read, []
            self._lost.clear()
            entries = (
                read_entry(record, self.producer)
                for record in read
                if (record.topic, record.partition) not in self._lost
            )
            limits = self.settings
            for group in grouped(
                entries, items_max=limits.group_items_max, bytes_max=limits.group_bytes_max
            ):
                if not self._judge(group, consumer, stop):
                    break
                self._finished |= self._kept(group.next_offsets)
            self._go_on(consumer, stop, self.clock.monotonic_s() - began_s)
            if self.clock.monotonic_s() >= commit_at:
                self._commit(consumer)
                commit_at = self.clock.monotonic_s() + self.commit_interval_s
        self._commit(consumer)

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Forget what was read of partitions that others own now; the consumer calls this."""
        lost = set(partitions)
        self._read = [r for r in self._read if (r.topic, r.partition) not in lost]
        for partition in lost:
            self._finished.pop(partition, None)
        self._open.discard(lost)
        self._lost |= lost

    def _gather(self, consumer: LogConsumer, stop: threading.Event) -> None:
        """Poll until a group is full or its first record has waited `group_wait_s`."""
        if self._open.item_count > _OPEN_ITEMS_MAX:
            return
        limits = self.settings
        if self._is_paused:
            consumer.resume(consumer.assigned)
            self._is_paused = False
        wait_s = _BUSY_POLL_S if self._open else _IDLE_POLL_S
        full_at = None
        while not stop.is_set():
            room = limits.poll_records_max - len(self._read)
            size = sum(len(record.value or b"") for record in self._read)
            if room <= 0 or size >= limits.group_bytes_max or wait_s <= 0:
                return
            now = self._poll(consumer, room, wait_s)
            if not self._read:
                return
            full_at = full_at or now + limits.group_wait_s
            wait_s = full_at - now

    def _poll(self, consumer: LogConsumer, room: int, wait_s: float) -> float:
        """Read on; return the monotonic time after it.

        What was read before may be revoked meanwhile, and what a poll brings before it is told so.
        """
        found = consumer.poll(room, wait_s)
        ours = consumer.assigned
        self._read += [record for record in found if (record.topic, record.partition) in ours]
        self._polled_s = self.clock.monotonic_s()
        return self._polled_s

    def _judge(self, group: Group, consumer: LogConsumer, stop: threading.Event) -> bool:
        """Make a group durable, and begin what it asks for besides; False when `stop` came first.

        What is left of a lost partition is not judged here: its steps are forgotten with it.
        """
        if stop.is_set():
            return False
        if not self._kept(group.offsets):
            return True
        calls = [bill for record in group.calls for bill in bills_of(record)]
        if calls:
            self._patiently(lambda: self.bill(calls), consumer, stop)
        if steps := self._patiently(partial(self._steps_of, group), consumer, stop):
            self._patiently(partial(self._begin, group, steps), consumer, stop)
        return True

    def _steps_of(self, group: Group) -> Sequence[WorkStep]:
        """Judge a group without what is behind a close that has not begun, or is not ours now."""
        for job_id in self._open.waiting_jobs & group.jobs.keys():
            IGNORED_AFTER_CLOSE.inc(len(group.jobs.pop(job_id)))
        for job_id in [its for its, place in group.places.items() if place in self._lost]:
            group.jobs.pop(job_id, None)
        if group.alone is None and not group.jobs:
            return ()
        return self.router.route(group)

    def _begin(self, group: Group, steps: Sequence[WorkStep]) -> None:
        kept = self._kept(group.offsets)
        if not kept:
            return
        if group.alone is not None and self._must_wait(group.alone):
            self._open.add_behind(kept, group.alone.job_id, steps)
        else:
            self._open.add(kept, group.job_ids, steps, item_count=group.item_count)

    def _must_wait(self, record: Close | CopiesDue) -> bool:
        """Keep a close behind the copies before it, and what follows behind the close.

        A close leaves copies without a row to nobody, and whoever reads the log again must find
        the same. They may be a million, so the records of other jobs do not wait for them.
        """
        if record.job_id in self._open.waiting_jobs:
            return True
        return isinstance(record, Close) and self._open.is_open(record.job_id)

    def _kept(self, offsets: Mapping[Partition, int]) -> dict[Partition, int]:
        """Return the offsets of partitions that were ours ever since their records were read."""
        return {place: offset for place, offset in offsets.items() if place not in self._lost}

    def _go_on(self, consumer: LogConsumer, stop: threading.Event, share_s: float) -> None:
        """Do steps of what is open for `share_s`, within a bound, one at least."""
        until_s = self.clock.monotonic_s() + min(share_s, _SHARE_S_MAX)
        while self._open and not stop.is_set():
            self._patiently(self._open.run_step, consumer, stop)
            if self.clock.monotonic_s() >= until_s:
                return

    def _patiently(self, write: Callable[[], T], consumer: LogConsumer, stop: threading.Event) -> T:
        """Try again while Postgres is away, staying a member of the group in any case.

        Partitions may be lost meanwhile. Raises the last failure after `database_wait_s`, or on
        `stop`.
        """
        give_up_at = self.clock.monotonic_s() + self.settings.database_wait_s
        backoff_s = _BACKOFF_S
        while True:
            try:
                done = write()
            except DATABASE_AWAY as failure:
                if stop.is_set() or self.clock.monotonic_s() >= give_up_at:
                    raise
                LOG.warning("database away", extra={"error": type(failure).__name__})
                DATABASE_RETRIES.inc()
                self._stay(consumer, backoff_s)
                backoff_s = min(2 * backoff_s, _BACKOFF_S_MAX)
            else:
                if self.clock.monotonic_s() - self._polled_s >= _STAY_S:
                    self._stay(consumer, 0)
                return done

    def _stay(self, consumer: LogConsumer, wait_s: float) -> None:
        """Poll without reading on; only a partition that is new to us can bring a record."""
        consumer.pause(consumer.assigned)
        self._is_paused = True
        self._poll(consumer, 1, wait_s)

    def _commit(self, consumer: LogConsumer) -> None:
        if not self._finished:
            return
        self.producer.flush(_FLUSH_S)  # dead letters are durable before their records are past
        # Kept until the broker took them; `revoked` drops what is lost, and a cooperative rebalance
        # leaves us the rest.
        offsets = self._open.committable(self._finished)
        try:
            if consumer.commit(offsets):
                self._finished = dict(self._finished.items() - offsets.items())
        except StaleMemberError:
            LOG.warning("the group goes on without this member")
