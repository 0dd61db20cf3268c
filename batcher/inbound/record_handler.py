"""From a delivered record to buffered chunks: decode, drop what is obsolete, queue the rest."""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from batcher import metrics
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.redelivered_items import CHUNKS_MAX, FindFinishedItems, has_item_rows
from batcher.inbound.unreadable_records import read_chunk
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.deferred_records import DeferredRecord
from batcher.queueing.drop_policy import ObsoleteItems
from batcher.queueing.pool_arrivals import PoolArrivals
from batcher.queueing.queues import Queues
from core.clock import Clock
from core.errors import RecordUnreadableError
from core.runtime.futures import run_in_daemon_thread
from topics.clients.offset_tracker import Partition
from topics.clients.producer import OnDelivery
from topics.records.chunks import is_requeued
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk

_RECORD_OVERHEAD_BYTES = 2048  # assumed memory of a record: its headers and Faust's objects
_RETRY_S = 0.5  # between two lookups while the database is unavailable

ReportUnreadable = Callable[[ReceivedRecord, OnDelivery], int]
"""Sends what replaces an unreadable record; returns how many deliveries will be reported."""


SettleOnDelivery = Callable[[AckTicket, int], OnDelivery]
"""Makes a delivery callback that settles so many items of a ticket on the event loop."""


class RecordHandler:
    """Accepts delivered records; every method runs on the event loop."""

    def __init__(
        self,
        queues: Queues,
        acks: OrderedAcks,
        *,
        obsolete_items: ObsoleteItems,
        find_finished: FindFinishedItems | None,
        clock: Clock,
        arrivals: PoolArrivals | None = None,
    ) -> None:
        """Without `find_finished` redeliveries are not checked.

        `arrivals` counts the chunks that are delivered for the first time.
        """
        self._arrivals = PoolArrivals() if arrivals is None else arrivals
        self._queues, self._acks = queues, acks
        self._obsolete_items, self._find_finished = obsolete_items, find_finished
        self._clock = clock
        self._redelivered_below: dict[Partition, int] = {}
        self._unchecked: list[BufferedChunk] = []
        self._unchecked_arrived = asyncio.Event()
        self.deferred_arrived = asyncio.Event()
        self.received_count = 0

    def on_assign(self, end_offsets: Mapping[Partition, int]) -> None:
        """Records below these offsets may have been dispatched before."""
        self._redelivered_below = dict(end_offsets)

    def on_revoke(self, partitions: list[Partition]) -> None:
        """Drop the chunks of these partitions: their records are delivered again."""
        self._acks.drop_partitions(partitions)
        self._queues.deferred.remove(lambda record: record.ticket.is_dropped)
        for chunk in self._queues.snapshot():
            if chunk.ticket.is_dropped:
                self._queues.remove(chunk)

    def handle_record(
        self,
        record: ReceivedRecord,
        event: Any,
        *,
        report_unreadable: ReportUnreadable,
        settle: SettleOnDelivery,
    ) -> None:
        """Buffer a record's chunk, or defer the record if its tenant has its quota of the buffer.

        Raises SchemaTooNewError: a newer release must read it.
        """
        self.received_count += 1
        metrics.RECORDS.inc()
        now_s = self._clock.monotonic_s()
        partition = (record.topic, record.partition)
        try:
            decoded = read_chunk(record)
        except RecordUnreadableError:
            metrics.UNREADABLE.inc()
            ticket = self._acks.track(partition, event, item_count=2, now_s=now_s)
            sent = report_unreadable(record, settle(ticket, 1))
            if sent < ticket.open_count:
                self._acks.settle(ticket, ticket.open_count - sent)
            return
        ticket = self._acks.track(
            partition,
            event,
            item_count=len(decoded.items),
            now_s=now_s,
            byte_count=_RECORD_OVERHEAD_BYTES + len(record.value or b""),
        )
        ticket.queued_s = max(0.0, self._clock.wall_s() - record.appended_ms / 1000)
        is_redelivery = record.offset < self._redelivered_below.get(partition, 0)
        chunk = _buffered(decoded, ticket, is_redelivery=is_redelivery)
        if self._obsolete_items.settle_if_obsolete(chunk):
            return
        if not chunk.redelivered and not is_requeued(record):
            self._arrivals.add(chunk)
        if self._queues.admits((chunk.job.tenant_id, chunk.job.pool)):
            self._accept(chunk, is_redelivery=is_redelivery)
            return
        metrics.DEFERRALS.inc()
        self._queues.deferred.add(
            DeferredRecord(
                job=chunk.job,
                ticket=ticket,
                offset=record.offset,
                item_count=chunk.item_count,
                byte_count=chunk.byte_count,
                is_redelivery=is_redelivery,
            )
        )
        self.deferred_arrived.set()

    def handle_deferred(self, deferred: DeferredRecord, record: ReceivedRecord | None) -> None:
        """Buffer a deferred record that was read again; None: it is not on the log any more.

        A record that left the log is settled: its job's items are emitted again (delivery rule 7).
        """
        self._queues.release(deferred)
        ticket = deferred.ticket
        if ticket.is_dropped:
            return
        if record is None:
            self._acks.settle(ticket, deferred.item_count)
            return
        decoded = read_chunk(record)
        chunk = _buffered(decoded, ticket, is_redelivery=deferred.is_redelivery)
        if not self._obsolete_items.settle_if_obsolete(chunk):
            self._accept(chunk, is_redelivery=deferred.is_redelivery)

    def _accept(self, chunk: BufferedChunk, *, is_redelivery: bool) -> None:
        """Queue a chunk, or check first which of its items have finished."""
        if is_redelivery and self._find_finished is not None and has_item_rows(chunk.job):
            self._unchecked.append(chunk)
            self._queues.reserve(chunk)
            self._unchecked_arrived.set()
            return
        self._queues.add(chunk, now_s=self._clock.monotonic_s())

    async def check_redeliveries(self, on_queued: Callable[[], None]) -> None:
        """Queue redelivered chunks without their finished items, until cancelled."""
        if self._find_finished is None:
            return
        while True:
            await self._unchecked_arrived.wait()
            chunks = self._unchecked[:CHUNKS_MAX]
            finished = await run_in_daemon_thread(
                partial(self._find_finished, chunks), name="batcher-rows"
            )
            if finished is None:
                chunks = self._remove_without_wait()
                finished = [set() for _ in chunks]
            else:
                del self._unchecked[: len(chunks)]  # more may have arrived meanwhile
            if not self._unchecked:
                self._unchecked_arrived.clear()
            for chunk, indexes in zip(chunks, finished, strict=True):
                self._queues.release(chunk)
                self._queue_unfinished(chunk, indexes)
            if chunks:
                on_queued()
            else:
                await asyncio.sleep(_RETRY_S)

    def _remove_without_wait(self) -> list[BufferedChunk]:
        """Remove and return the chunks that do not wait for an unavailable database.

        These are chunks of revoked partitions, and online calls, whose clients wait.
        """
        unchecked, self._unchecked = self._unchecked, []
        removed: list[BufferedChunk] = []
        for chunk in unchecked:
            waits = chunk.job.call is None and not chunk.ticket.is_dropped
            (self._unchecked if waits else removed).append(chunk)
        return removed

    def _queue_unfinished(self, chunk: BufferedChunk, finished: set[int]) -> None:
        if chunk.ticket.is_dropped:
            return
        if finished:
            unfinished = chunk.without(finished)
            count = len(chunk.items) - (0 if unfinished is None else len(unfinished.items))
            metrics.ITEMS_DROPPED.labels("finished").inc(count)
            if count:
                self._acks.settle(chunk.ticket, count)
            if unfinished is None:
                return
            chunk = unfinished
        self._queues.add(chunk, now_s=self._clock.monotonic_s())


def _buffered(chunk: Chunk, ticket: AckTicket, *, is_redelivery: bool) -> BufferedChunk:
    return BufferedChunk(
        chunk.job,
        chunk.items,
        ticket,
        redelivered=is_redelivery or chunk.redelivered,
        position=chunk.position,
    )
