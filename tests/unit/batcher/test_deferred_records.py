"""Goal: a record above the quota of its tenant is read again later, once, and never lost."""

import asyncio
from collections.abc import Collection, Mapping

import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import OrderedAcks
from batcher.inbound.deferred_reads import DeferredReads
from batcher.inbound.record_handler import RecordHandler
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.queues import Queues
from tests.support.clock import ManualClock
from tests.unit.batcher.builders import JobStates, items_of, job_ref
from topics.errors import KafkaUnavailableError
from topics.records.codec import chunk_headers, encode
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk

PARTITION = ("requests.bulk", 3)
ITEMS_MAX = 700
"""One tenant alone may have 4/7 of them: it may add until it has 400."""


class Bench:
    """A record handler over a log, which is a list of records."""

    def __init__(self, *, deferred_max: int = 100) -> None:
        self.acknowledged: list[int] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.queues = Queues(items_max=ITEMS_MAX, bytes_max=10**9, deferred_max=deferred_max)
        self.states = JobStates()
        clock = ManualClock(100.0)
        policy = DropPolicy(self.states, DatabaseClock(clock, None))
        self.checked: list[BufferedChunk] = []
        self.handler = RecordHandler(
            self.queues,
            self.acks,
            obsolete_items=ObsoleteItems(self.acks, policy),
            find_finished=lambda chunks: [set() for _ in chunks],
            clock=clock,
        )
        self.log: list[ReceivedRecord] = []
        self.is_available = True
        self.fetched: list[int] = []
        self.reads = DeferredReads(self.queues, self.handler, self._fetch)

    def send(self, tenant: int, *, chunks: int = 1, pool: str = "p") -> None:
        """Append chunks of 100 items of a tenant's job, and read them while reading goes on."""
        for _ in range(chunks):
            offset = len(self.log)
            chunk = Chunk(job_ref(tenant, pool=pool), items_of(range(offset, offset + 100)))
            record = ReceivedRecord(
                *PARTITION, offset, None, chunk_headers(chunk, "bulk"), encode(chunk), 0
            )
            self.log.append(record)
            self.handler.handle_record(
                record,
                offset,
                report_unreadable=lambda *_: 0,
                settle=lambda *_: lambda _failure: None,
            )

    def buffered(self) -> list[tuple[int, int]]:
        """Return the tenant and the first item of each buffered chunk."""
        return sorted(
            (chunk.job.tenant_id.int, chunk.items[0].index) for chunk in self.queues.snapshot()
        )

    def finish(self, tenant: int) -> None:
        """Dispatch and settle what a tenant has in the buffer."""
        for chunk in self.queues.snapshot():
            if chunk.job.tenant_id.int == tenant:
                self.queues.remove(chunk)
                self.acks.settle(chunk.ticket, len(chunk.items))

    def read(self) -> int:
        return asyncio.run(self.reads.read_once())

    def _fetch(
        self, wanted: Mapping[int, Collection[int]], timeout_s: float
    ) -> dict[tuple[int, int], ReceivedRecord]:
        assert timeout_s > 0
        if not self.is_available:
            raise KafkaUnavailableError
        (offsets,) = wanted.values()
        self.fetched += offsets
        found = {offset: record for offset, record in enumerate(self.log) if record.value}
        return {(PARTITION[1], offset): found[offset] for offset in offsets if offset in found}


def test_a_whale_leaves_room_for_a_newcomer_behind_it_on_the_log() -> None:
    bench = Bench()
    bench.send(1, chunks=20)
    bench.send(2)
    assert bench.buffered() == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 20)]
    assert len(bench.queues.deferred) == 16
    assert not bench.queues.is_reading_stopped


def test_deferred_records_are_read_in_order_when_there_is_room_and_commit_in_order() -> None:
    bench = Bench()
    bench.send(1, chunks=10)
    assert bench.read() == 0
    bench.finish(1)
    assert bench.acknowledged == [0, 1, 2, 3]
    assert bench.read() == 4
    assert bench.buffered() == [(1, 4), (1, 5), (1, 6), (1, 7)]
    bench.finish(1)
    assert bench.read() == 2
    bench.finish(1)
    assert bench.acknowledged == list(range(10))
    assert bench.fetched == list(range(4, 10))
    assert bench.queues.item_count == bench.queues.reserved_count == len(bench.queues.deferred) == 0


def test_the_tenant_with_the_fewest_buffered_items_is_read_first() -> None:
    bench = Bench()
    bench.send(1, chunks=6)
    bench.send(2, chunks=6)
    bench.finish(2)
    bench.read()
    assert bench.log[bench.fetched[0]].offset == bench.fetched[0] >= 6


def test_records_stay_deferred_while_the_broker_is_unavailable() -> None:
    bench = Bench()
    bench.send(1, chunks=6)
    bench.finish(1)
    bench.is_available = False
    with pytest.raises(KafkaUnavailableError):
        bench.read()
    assert bench.queues.reserved_count == 0
    bench.is_available = True
    assert bench.read() == 2
    assert bench.fetched == [4, 5]


def test_a_record_that_left_the_log_is_settled() -> None:
    bench = Bench()
    bench.send(1, chunks=5)
    bench.finish(1)
    bench.log.clear()
    assert bench.read() == 1
    assert bench.acknowledged == list(range(5))
    assert bench.queues.item_count == bench.queues.reserved_count == 0


def test_deferred_records_of_revoked_partitions_and_closed_jobs_are_not_queued() -> None:
    bench = Bench()
    bench.send(1, chunks=6)
    bench.finish(1)
    bench.states.close(1)
    assert bench.read() == 2
    assert bench.buffered() == []
    assert bench.acknowledged == list(range(6))
    bench = Bench()
    bench.send(1, chunks=6)
    bench.handler.on_revoke([PARTITION])
    assert len(bench.queues.deferred) == bench.queues.item_count == 0


def test_a_redelivered_record_is_checked_after_it_was_read_again() -> None:
    bench = Bench()
    bench.handler.on_assign({PARTITION: 100})
    bench.send(1, chunks=6)
    assert len(bench.queues.deferred) == 2
    assert bench.queues.reserved_count == 400
    first = next(iter(bench.queues.deferred))
    first.is_urgent = True
    assert bench.read() == 1
    assert bench.queues.reserved_count == 500  # it waits for the check, whatever the quota
    assert bench.queues.item_count == 0


def test_reading_stops_when_no_further_record_can_be_deferred() -> None:
    bench = Bench(deferred_max=3)
    bench.send(1, chunks=7)
    stopped = [bench.queues.is_reading_stopped]
    bench.finish(1)
    bench.read()
    assert [*stopped, bench.queues.is_reading_stopped] == [True, False]


def test_without_deferral_a_tenant_fills_the_buffer() -> None:
    bench = Bench(deferred_max=0)
    bench.send(1, chunks=6)
    stopped = [bench.queues.is_reading_stopped]
    bench.send(1)
    assert [*stopped, bench.queues.is_reading_stopped] == [False, True]
    assert bench.queues.item_count == ITEMS_MAX


def test_the_loop_reads_what_is_deferred_and_reports_it() -> None:
    async def read_two() -> None:
        bench, queued = Bench(), asyncio.Event()
        loop = asyncio.create_task(bench.reads.run(queued.set))
        bench.send(1, chunks=6)
        bench.finish(1)
        await asyncio.wait_for(queued.wait(), 30)
        loop.cancel()
        assert bench.buffered() == [(1, 4), (1, 5)]

    asyncio.run(read_two())
