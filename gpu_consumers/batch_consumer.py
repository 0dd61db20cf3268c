"""The consumer thread: polls batches, delivers them to the event loop, commits finished offsets.

Polling never stops while the engine works: a partition with too many records in flight is paused.
"""

import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable

from core.clock import Clock
from core.errors import RecordUnreadableError
from gpu_consumers.inflight.batch_run import DeliveredBatch
from topics.clients.consumer import GroupConsumer
from topics.clients.dead_letter_sender import DeadLetterSender
from topics.clients.offset_tracker import OffsetTracker, Partition
from topics.clients.producer import RecordSender
from topics.errors import KafkaUnavailableError, StaleMemberError
from topics.records.codec import decode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch

_LOG = logging.getLogger(__name__)
_POLL_S = 0.05
_JOINING_POLL_S = 0.01  # a poll that brings an assignment lasts until its end
_COUNT_MAX = 50
_UNKNOWN_END = sys.maxsize


Deliver = Callable[[DeliveredBatch], None]

PartitionsCallback = Callable[[list[Partition]], None]

OnRevoke = Callable[[list[Partition], bool], None]
"""Stops the work of partitions; True when they are lost, so that others own them already."""


OnPinned = Callable[[Partition, list[int]], None]
"""Requeues the batches at these offsets if they only wait for an unavailable partition."""


class BatchConsumer:
    """Reads the batches of one pool and class. Runs in one thread."""

    def __init__(  # noqa: PLR0913  each one is an option
        self,
        connect: Callable[[PartitionsCallback, PartitionsCallback], GroupConsumer],
        producer: RecordSender,
        *,
        in_flight_max: int,
        commit_interval_s: float,
        clock: Clock,
        keeps_calls: bool = False,
        should_rejoin: Callable[[bool], bool] = lambda _: False,
        before_join: Callable[[], object] = lambda: None,
    ) -> None:
        """`connect` creates the member from callbacks for assigned and revoked partitions.

        `run` calls `before_join` and lets the member join.

        With `keeps_calls`, connection-bound calls run on when their partition moves, and their
        offsets are committed so that its next owner does not read them. `should_rejoin` gets
        whether this member has partitions, and returns whether to join the group again.
        """
        self._should_rejoin, self._before_join = should_rejoin, before_join
        self._dead_letters = DeadLetterSender(producer)
        self._keeps_calls = keeps_calls
        self._stop_revoked: OnRevoke = lambda *_: None
        self._ends: dict[Partition, int] = {}  # end offsets at the assignment
        # Unfinished records that hold only connection-bound calls.
        self._connection_bound: set[tuple[Partition, int]] = set()
        self._is_leaving = False
        self._in_flight_max, self._commit_interval_s = in_flight_max, commit_interval_s
        self._clock = clock
        self._tracker = OffsetTracker()
        self._finished: queue.SimpleQueue[tuple[Partition, int, int]] = queue.SimpleQueue()
        self._generation = 0
        self._generations: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._committed: dict[Partition, int] = {}  # by this member: the next offset of each
        self._assignment_changed = False
        self._dead_letter_failure: BaseException | None = None
        self._consumer = connect(self._on_assign, self._on_revoke)
        self._draining = threading.Event()

    def mark_finished(self, record: ReceivedRecord, generation: int) -> None:
        """Report that the effects of `record` are durable; from any thread.

        A report of an earlier assignment is ignored.
        """
        self._finished.put(((record.topic, record.partition), record.offset, generation))

    def is_committed(self, record: ReceivedRecord) -> bool:
        """Return whether this member has committed past `record`; from any thread."""
        return self._committed.get((record.topic, record.partition), 0) > record.offset

    def drain(self) -> None:
        """Deliver nothing more, but commit until stopped; from any thread."""
        self._draining.set()

    def run(
        self,
        deliver: Deliver,
        on_assignment: PartitionsCallback,
        stop: threading.Event,
        on_revoke: OnRevoke = lambda *_: None,
        on_pinned: OnPinned = lambda *_: None,
    ) -> None:
        """Thread body: join, poll, deliver and commit until `stop`; then commit and leave.

        Raises SchemaTooNewError, KafkaUnavailableError, DeliveryError: the process must end.
        """
        self._stop_revoked = on_revoke
        self._before_join()
        self._consumer.join()
        committed_s = self._clock.monotonic_s()
        while not stop.is_set():
            poll_s = _POLL_S if self._consumer.assigned else _JOINING_POLL_S
            records = self._consumer.poll(_COUNT_MAX, poll_s)
            # Batchers may use a partition once its end is known: what they add then is new.
            if self._assignment_changed and self._fetch_end_offsets(self._consumer.assigned):
                self._assignment_changed = False
                on_assignment(sorted(self._consumer.assigned))
            if self._dead_letter_failure is not None:
                raise self._dead_letter_failure
            if not self._draining.is_set():
                for record in records:
                    self._deliver_record(record, deliver)
            self._apply_finished()
            self._dead_letters.send_waiting()
            self._pause_full_partitions()
            if self._should_rejoin(bool(self._consumer.assigned)):
                self._consumer.rejoin()
            if self._clock.monotonic_s() - committed_s >= self._commit_interval_s:
                self._commit_offsets()
                self._report_pinned(on_pinned)
                committed_s = self._clock.monotonic_s()
        self._is_leaving = True
        self._apply_finished()
        self._commit_offsets()
        self._consumer.close()

    def _deliver_record(self, record: ReceivedRecord, deliver: Deliver) -> None:
        partition = (record.topic, record.partition)
        generation = self._generations.get(partition)
        if generation is None:
            return  # revoked during the poll that returned the record: its new owner reads it
        self._tracker.track(partition, record.offset)
        try:
            batch = decode(Batch, record.value, record.headers)
        except RecordUnreadableError as error:
            # Its items have no outcome: the recovery of their jobs emits them again.
            _LOG.error(
                "unreadable batch", extra={"partition": record.partition, "offset": record.offset}
            )
            self._send_dead_letter(record, generation, error.code)
            return
        # While the end is unknown, every record counts as redelivered.
        is_redelivered = record.offset < self._ends.get(partition, _UNKNOWN_END)
        if self._keeps_calls and all(p.job.call and not p.job.call.durable for p in batch.parts):
            self._connection_bound.add((partition, record.offset))
        deliver(DeliveredBatch(record, batch, generation, is_redelivered))

    def _fetch_end_offsets(self, partitions: Iterable[Partition]) -> bool:
        """Read the end offsets of new partitions; return False when the broker does not answer."""
        new = frozenset(partitions) - self._ends.keys()
        if not new:
            return True
        try:
            self._ends |= self._consumer.end_offsets(new)
        except KafkaUnavailableError:
            _LOG.warning("the ends of new partitions are not known yet")
            return False
        return True

    def _send_dead_letter(self, record: ReceivedRecord, generation: int, code: str) -> None:
        def on_delivery(failure: BaseException | None) -> None:
            if failure is None:
                self.mark_finished(record, generation)
            else:
                self._dead_letter_failure = failure

        self._dead_letters.send(record, code=code, on_delivery=on_delivery)
        # The batcher whose credit it used is unreadable, too: a new epoch voids that credit.
        self._assignment_changed = True

    def _apply_finished(self) -> None:
        while True:
            try:
                partition, offset, generation = self._finished.get_nowait()
            except queue.Empty:
                return
            if self._generations.get(partition) == generation:
                self._tracker.mark_finished(partition, offset)
                self._connection_bound.discard((partition, offset))

    def _report_pinned(self, on_pinned: OnPinned) -> None:
        """Report batches before the partition is paused because of them."""
        for partition in self._consumer.assigned:
            if offsets := self._tracker.pinning(partition, self._in_flight_max // 2):
                on_pinned(partition, offsets)

    def _pause_full_partitions(self) -> None:
        """Pause partitions with too many records above their lowest unfinished one.

        And those with too many bytes of dead letters that are not acknowledged.
        """
        owned = self._consumer.assigned
        full = {p for p in owned if self._tracker.in_flight(p) >= self._in_flight_max}
        full |= self._dead_letters.waiting_partitions & owned
        if pause := full - self._paused:
            self._consumer.pause(pause)
        if resume := self._paused - full:
            self._consumer.resume(resume)
        self._paused = full

    def _commit_offsets(self) -> None:
        ready = self._tracker.committable()
        try:
            if self._consumer.commit(ready):
                self._tracker.mark_committed(ready)
                self._committed |= {p: ready[p] for p in ready.keys() & self._consumer.assigned}
        except StaleMemberError:
            _LOG.warning("the group goes on without this member")

    def _on_assign(self, partitions: list[Partition]) -> None:
        self._generation += 1
        self._tracker.drop(partitions)  # they start again at the committed offset of the group
        self._forget_ends(partitions)
        for partition in partitions:
            self._committed.pop(partition, None)
        self._generations |= dict.fromkeys(partitions, self._generation)
        self._assignment_changed = True
        # Before they are fetched: the request would wait behind a fetch. `run` tries again.
        self._fetch_end_offsets(partitions)

    def _on_revoke(self, partitions: list[Partition]) -> None:
        lost = self._consumer.is_assignment_lost
        self._stop_revoked(partitions, lost)
        if lost:
            self._connection_bound = {
                key for key in self._connection_bound if key[0] not in partitions
            }
        else:
            self._commit_revoked(set(partitions))
        self._tracker.drop(partitions)
        self._dead_letters.discard(partitions)
        self._paused.difference_update(partitions)
        for partition in partitions:
            self._generations.pop(partition, None)
        self._forget_ends(partitions)
        self._assignment_changed = True

    def _commit_revoked(self, partitions: set[Partition]) -> None:
        """Commit finished records, and past calls that run on, unless this member leaves.

        If those calls also ran elsewhere, their callers would drop one of two answers. A record
        with a durable call is not skipped: it must outlive this process, so the next owner runs it.
        """
        self._apply_finished()
        running_on = {key for key in self._connection_bound if key[0] in partitions}
        self._connection_bound -= running_on
        if not self._is_leaving:
            for partition, offset in sorted(running_on):
                self._tracker.mark_finished(partition, offset)
            self._commit_offsets()

    def _forget_ends(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._ends.pop(partition, None)
