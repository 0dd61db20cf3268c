"""The consumer thread: polls batches, hands them to the event loop, commits what is finished.

The poll loop goes on while the engine works; partitions are paused, never abandoned.
"""

import logging
import queue
import sys
import threading
from collections.abc import Callable

from core.clock import Clock
from core.errors import RecordUnreadableError
from gpu_consumers.inflight.delivery import Delivery
from topics.clients.consumer import GroupConsumer
from topics.clients.offset_tracker import OffsetTracker, Partition
from topics.clients.producer import RecordSender
from topics.errors import KafkaUnavailableError, StaleMemberError
from topics.records.codec import decode
from topics.records.dead_letter_copy import send_dead_letter
from topics.records.received_record import ReceivedRecord
from topics.records.records import Batch

_LOG = logging.getLogger(__name__)
_POLL_S = 0.05
_COUNT_MAX = 50
_FAR = sys.maxsize


Deliver = Callable[[Delivery], None]

Assigned = Callable[[list[Partition]], None]

LetGo = Callable[[list[Partition], bool], None]
"""Puts down what lies on partitions; True when they are lost: others have them already."""


def _keep_on(_partitions: list[Partition], _lost: bool) -> None:
    """Nothing runs."""


class BatchConsumer:
    """Reads one pool's batches; `finished` may be called from any thread."""

    def __init__(
        self,
        connect: Callable[[Assigned, Assigned], GroupConsumer],
        producer: RecordSender,
        *,
        in_flight_max: int,
        commit_interval_s: float,
        clock: Clock,
        keeps_calls: bool = False,
    ) -> None:
        """`connect` makes the group member from callbacks for assigned and revoked partitions.

        With `keeps_calls`, calls go on when their partition moves: its next owner does not see
        them.
        """
        self._producer = producer
        self._keeps_calls = keeps_calls
        self._let_go: LetGo = _keep_on
        self._ends: dict[Partition, int] = {}  # when they were assigned
        self._bound: set[tuple[Partition, int]] = set()  # unfinished, of calls with a connection
        self._is_leaving = False
        self._in_flight_max, self._commit_interval_s = in_flight_max, commit_interval_s
        self._clock = clock
        self._tracker = OffsetTracker()
        self._finished: queue.SimpleQueue[tuple[Partition, int, int]] = queue.SimpleQueue()
        self._generation = 0
        self._generations: dict[Partition, int] = {}
        self._paused: set[Partition] = set()
        self._committed: dict[Partition, int] = {}  # by this member, the next offset of each
        self._moved = False
        self._unburied: BaseException | None = None
        self._consumer = connect(self._on_assign, self._on_revoke)
        self._draining = threading.Event()

    def finished(self, record: ReceivedRecord, generation: int) -> None:
        """The effect of `record` is durable; one of an earlier assignment is ignored."""
        self._finished.put(((record.topic, record.partition), record.offset, generation))

    def is_committed(self, record: ReceivedRecord) -> bool:
        """Whether this member has committed past `record`; from any thread."""
        return self._committed.get((record.topic, record.partition), 0) > record.offset

    def drain(self) -> None:
        """Deliver nothing more; go on committing until stopped."""
        self._draining.set()

    def run(
        self,
        deliver: Deliver,
        moved: Assigned,
        stop: threading.Event,
        let_go: LetGo = _keep_on,
    ) -> None:
        """Thread body: poll, deliver, commit until `stop`, then commit once more and leave.

        Raises SchemaTooNewError, KafkaUnavailableError, DeliveryError: the process must end.
        """
        self._let_go = let_go
        committed_s = self._clock.monotonic_s()
        while not stop.is_set():
            records = self._consumer.poll(_COUNT_MAX, _POLL_S)
            # Who may send hears of a partition when its end is known: what they add then is new.
            if self._moved and self._know_ends():
                self._moved = False
                moved(sorted(self._consumer.assigned))
            if self._unburied is not None:
                raise self._unburied
            if not self._draining.is_set():
                for record in records:
                    self._take(record, deliver)
            self._settle()
            self._throttle()
            if self._clock.monotonic_s() - committed_s >= self._commit_interval_s:
                self._commit()
                committed_s = self._clock.monotonic_s()
        self._is_leaving = True
        self._settle()
        self._commit()
        self._consumer.close()

    def lag(self) -> dict[Partition, int]:
        """Return the records behind the end of each owned partition."""
        return self._consumer.lag()

    def _take(self, record: ReceivedRecord, deliver: Deliver) -> None:
        place = (record.topic, record.partition)
        generation = self._generations.get(place)
        if generation is None:
            return  # revoked by the same poll that brought it: its new owner reads it
        self._tracker.track(place, record.offset)
        try:
            batch = decode(Batch, record.value, record.headers)
        except RecordUnreadableError as error:
            # Its items have no outcome: the repair of their jobs emits them again.
            _LOG.error(
                "unreadable batch", extra={"partition": record.partition, "offset": record.offset}
            )
            self._bury(record, generation, error.code)
            return
        # An end that is not known yet makes every record an old one.
        may_have_run = record.offset < self._ends.get(place, _FAR)
        if self._keeps_calls and all(p.job.call and not p.job.call.durable for p in batch.parts):
            self._bound.add((place, record.offset))
        deliver(Delivery(record, batch, generation, may_have_run))

    def _know_ends(self) -> bool:
        """Ask where partitions end that are new here; False while the broker does not tell."""
        new = self._consumer.assigned - self._ends.keys()
        if not new:
            return True
        try:
            self._ends |= self._consumer.end_offsets(new)
        except KafkaUnavailableError:
            _LOG.warning("the ends of new partitions are not known yet")
            return False
        return True

    def _bury(self, record: ReceivedRecord, generation: int, code: str) -> None:
        def buried(failure: BaseException | None) -> None:
            if failure is None:
                self.finished(record, generation)
            else:
                self._unburied = failure

        send_dead_letter(self._producer, record, code=code, on_delivery=buried)
        self._moved = True  # whose credit it spent is unreadable too: a new epoch voids it

    def _settle(self) -> None:
        while True:
            try:
                place, offset, generation = self._finished.get_nowait()
            except queue.Empty:
                return
            if self._generations.get(place) == generation:
                self._tracker.mark_finished(place, offset)
                self._bound.discard((place, offset))

    def _throttle(self) -> None:
        """Pause partitions with too many records above their lowest unfinished one."""
        owned = self._consumer.assigned
        full = {p for p in owned if self._tracker.in_flight(p) >= self._in_flight_max}
        if pause := full - self._paused:
            self._consumer.pause(pause)
        if resume := self._paused - full:
            self._consumer.resume(resume)
        self._paused = full

    def _commit(self) -> None:
        ready = self._tracker.committable()
        try:
            if self._consumer.commit(ready):
                self._tracker.mark_committed(ready)
                self._committed |= {p: ready[p] for p in ready.keys() & self._consumer.assigned}
        except StaleMemberError:
            _LOG.warning("the group goes on without this member")

    def _on_assign(self, partitions: list[Partition]) -> None:
        self._generation += 1
        self._tracker.drop(partitions)  # they begin anew, where the group has committed
        self._forget_ends(partitions)
        for partition in partitions:
            self._committed.pop(partition, None)
        self._generations |= dict.fromkeys(partitions, self._generation)
        self._moved = True

    def _on_revoke(self, partitions: list[Partition]) -> None:
        lost = self._consumer.is_assignment_lost
        self._let_go(partitions, lost)
        if lost:
            self._bound = {key for key in self._bound if key[0] not in partitions}
        else:
            self._hand_over(set(partitions))
        self._tracker.drop(partitions)
        self._paused.difference_update(partitions)
        for partition in partitions:
            self._generations.pop(partition, None)
        self._forget_ends(partitions)
        self._moved = True

    def _hand_over(self, partitions: set[Partition]) -> None:
        """Commit what is finished, and past calls that go on here unless this member leaves.

        Run again elsewhere, their callers would drop one of the two answers. A durable call stops
        this: it must outlive this process, so the next owner runs it.
        """
        self._settle()
        going_on = {key for key in self._bound if key[0] in partitions}
        self._bound -= going_on
        if not self._is_leaving:
            for place, offset in sorted(going_on):
                self._tracker.mark_finished(place, offset)
            self._commit()

    def _forget_ends(self, partitions: list[Partition]) -> None:
        for partition in partitions:
            self._ends.pop(partition, None)
