"""From a delivered record to held items: decode, skip what has ended, queue the rest."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from batcher import metrics
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.redelivered_items import CHUNKS_MAX, FindFinishedItems, has_item_rows
from batcher.inbound.unreadable_records import read_chunk
from batcher.policy.requeue_policy import RECORD_OVERHEAD_BYTES
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.drop_policy import OverJobs
from batcher.queueing.queues import Queues
from core.clock import Clock
from core.errors import RecordUnreadableError
from core.futures import in_daemon
from topics.clients.offsets import Partition
from topics.clients.producer import OnDelivery
from topics.records.received import Received

_LOG = logging.getLogger(__name__)

_AGAIN_S = 0.5  # between two looks whether a database that is away is back

ReportUnreadable = Callable[[Received, OnDelivery], int]
"""Sends what an unreadable record leaves; returns how many deliveries will be reported."""


class SettleOnDelivery(Protocol):
    """Makes a delivery callback, for the producer's thread, that settles on the event loop."""

    def __call__(self, ticket: AckTicket, item_count: int) -> OnDelivery:
        """Return the callback."""
        ...


class RecordHandler:
    """Takes records over; every method runs on the event loop."""

    def __init__(
        self,
        queues: Queues,
        acks: OrderedAcks,
        *,
        over: OverJobs,
        finished: FindFinishedItems | None,
        clock: Clock,
    ) -> None:
        """`finished` None leaves redeliveries unchecked."""
        self._queues, self._acks = queues, acks
        self._over, self._finished = over, finished
        self._clock = clock
        self._old_below: dict[Partition, int] = {}
        self._unchecked: list[BufferedChunk] = []
        self._unchecked_came = asyncio.Event()
        self.received_count = 0

    def assigned(self, end_offsets: Mapping[Partition, int]) -> None:
        """Records below these offsets may have been dispatched before."""
        self._old_below = dict(end_offsets)

    def revoked(self, partitions: list[Partition]) -> None:
        """Forget what is held of them: it is delivered again, here or elsewhere."""
        self._acks.drop(partitions)
        for held in self._queues.held():
            if held.ticket.dropped:
                self._queues.remove(held)

    def take(
        self, record: Received, event: Any, *, report: ReportUnreadable, settle: SettleOnDelivery
    ) -> None:
        """Take over one record. Raises SchemaTooNewError: a newer release must read it."""
        self.received_count += 1
        metrics.RECORDS.inc()
        now_s = self._clock.monotonic_s()
        partition = (record.topic, record.partition)
        try:
            chunk = read_chunk(record)
        except RecordUnreadableError:
            metrics.UNREADABLE.inc()
            ticket = self._acks.delivered(partition, event, item_count=2, now_s=now_s)
            sent = report(record, settle(ticket, 1))
            if sent < ticket.open_count:
                self._acks.settle(ticket, ticket.open_count - sent)
            return
        count = len(chunk.items)
        ticket = self._acks.delivered(
            partition,
            event,
            item_count=count,
            now_s=now_s,
            byte_count=RECORD_OVERHEAD_BYTES + len(record.value or b""),
        )
        if (reason := self._over.reason(chunk.job, since_s=now_s)) is not None:
            metrics.ITEMS_DROPPED.labels(reason).inc(count)
            self._acks.settle(ticket, count)
            return
        is_old = record.offset < self._old_below.get(partition, 0)
        held = BufferedChunk(
            chunk.job, chunk.items, ticket, redelivered=is_old or chunk.redelivered
        )
        if is_old and self._finished is not None and has_item_rows(chunk.job):
            self._unchecked.append(held)
            self._queues.expect(held)
            self._unchecked_came.set()
            return
        self._queues.add(held, now_s=now_s)

    async def check_redeliveries(self, on_queued: Callable[[], None]) -> None:
        """Queue redelivered chunks without their ended items, until cancelled."""
        if self._finished is None:
            return
        while True:
            await self._unchecked_came.wait()
            chunks = self._unchecked[:CHUNKS_MAX]
            ended = await in_daemon(partial(self._finished, chunks), name="batcher-rows")
            if ended is None:
                chunks = self._take_unwaiting()
                ended = [set() for _ in chunks]
            else:
                del self._unchecked[: len(chunks)]  # more may have come meanwhile
            if not self._unchecked:
                self._unchecked_came.clear()
            for held, indexes in zip(chunks, ended, strict=True):
                self._queues.checked(held)
                self._queue_rest(held, indexes)
            if chunks:
                on_queued()
            else:
                await asyncio.sleep(_AGAIN_S)

    def _take_unwaiting(self) -> list[BufferedChunk]:
        """Remove and return what does not wait for a database that is away.

        That is what is lost, and calls: their clients wait.
        """
        unchecked, self._unchecked = self._unchecked, []
        taken: list[BufferedChunk] = []
        for held in unchecked:
            waits = held.job.call is None and not held.ticket.dropped
            (self._unchecked if waits else taken).append(held)
        return taken

    def _queue_rest(self, held: BufferedChunk, ended: set[int]) -> None:
        if held.ticket.dropped:
            return
        if ended:
            rest = [item for item in held.items if item.index not in ended]
            count = len(held.items) - len(rest)
            metrics.ITEMS_DROPPED.labels("finished").inc(count)
            if count:
                self._acks.settle(held.ticket, count)
            if not rest:
                return
            held = BufferedChunk(held.job, rest, held.ticket, redelivered=held.redelivered)
        self._queues.add(held, now_s=self._clock.monotonic_s())
