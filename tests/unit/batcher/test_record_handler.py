"""Goal: every record is handled once, and finished items are not executed again."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from batcher.database_clock import DatabaseClock
from batcher.faust_app.ordered_acks import AckTicket, OrderedAcks
from batcher.inbound.record_handler import RecordHandler
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.drop_policy import DropPolicy, ObsoleteItems
from batcher.queueing.pool_arrivals import PoolArrivals
from batcher.queueing.queues import Queues
from core.clock import SystemClock
from core.errors import SchemaTooNewError
from tests.support.until import until_true
from tests.unit.batcher.builders import JobStates, call_ref, items_of, job_ref
from topics.clients.producer import OnDelivery
from topics.records.codec import chunk_headers, encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Chunk, Item, JobRef

PARTITION = ("requests.bulk", 3)


def call_of(number: int, *, redelivered: bool = False, durable: bool = False) -> Chunk:
    job = call_ref(number, durable=durable)
    return Chunk(job, [Item(0, "", b"{}", 1)], redelivered=redelivered)


def chunk_of(job: int, indexes: range) -> Chunk:
    return Chunk(job_ref(job), items_of(indexes, tokens=1))


def record(offset: int, chunk: Chunk) -> ReceivedRecord:
    headers = chunk_headers(chunk, "bulk") if chunk.items else kind_headers(Chunk)
    return raw(offset, encode(chunk), headers)


def raw(offset: int, value: bytes | None, headers: list[tuple[str, bytes]]) -> ReceivedRecord:
    return ReceivedRecord(*PARTITION, offset, None, headers, value, 0)


class Bench:
    """A record handler whose every callback is recorded."""

    def __init__(
        self,
        finished: dict[int, set[int]] | None = None,
        *,
        end: int | None = None,  # of the partition when it is assigned
        bytes_max: int = 10**9,
        deferred_max: int = 0,
    ) -> None:
        self.acknowledged: list[object] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.queues = Queues(items_max=100, bytes_max=bytes_max, deferred_max=deferred_max)
        self.arrivals = PoolArrivals()
        self.states = JobStates()
        self.dead_callers: set[UUID] = set()
        self.reported: list[tuple[ReceivedRecord, OnDelivery]] = []
        self.reports_of_a_record = 2
        self.lookups: list[list[UUID]] = []
        self.is_database_available = True
        self._finished = finished
        time = DatabaseClock(SystemClock(), None)
        self.handler = RecordHandler(
            self.queues,
            self.acks,
            obsolete_items=ObsoleteItems(
                self.acks, DropPolicy(self.states, time, self._is_obsolete_call)
            ),
            find_finished=None if finished is None else self._find_finished,
            clock=SystemClock(),
            arrivals=self.arrivals,
        )
        if end is not None:
            self.handler.on_assign({PARTITION: end})

    def _is_obsolete_call(self, job: JobRef, /, *, since_s: float) -> bool:
        assert since_s > 0
        return job.job_id in self.dead_callers

    def handle(self, received: ReceivedRecord) -> None:
        self.handler.handle_record(
            received, received.offset, report_unreadable=self._report, settle=self._settle
        )

    def _find_finished(self, chunks: Sequence[BufferedChunk]) -> list[set[int]] | None:
        assert self._finished is not None
        self.lookups.append([chunk.job.job_id for chunk in chunks])
        if not self.is_database_available:
            return None
        return [self._finished.get(chunk.job.job_id.int, set()) for chunk in chunks]

    def _report(self, received: ReceivedRecord, on_delivery: OnDelivery) -> int:
        self.reported.append((received, on_delivery))
        return self.reports_of_a_record

    def _settle(self, ticket: AckTicket, item_count: int) -> OnDelivery:
        return lambda failure: self.acks.settle(ticket, item_count)

    def indexes(self) -> list[int]:
        return sorted(item.index for chunk in self.queues.snapshot() for item in chunk.items)


def test_record_is_acknowledged_when_its_items_are_settled() -> None:
    bench = Bench()
    bench.handle(record(0, chunk_of(1, range(10))))
    (chunk,) = bench.queues.snapshot()
    assert bench.queues.item_count == 10
    assert bench.acknowledged == []
    bench.queues.remove(chunk)
    bench.acks.settle(chunk.ticket, 10)
    assert bench.acknowledged == [0]


@pytest.mark.parametrize("deliveries", [1, 2])
def test_unreadable_record_is_acknowledged_when_its_replacements_are_durable(
    deliveries: int,
) -> None:
    bench = Bench()
    bench.reports_of_a_record = deliveries
    bench.handle(raw(0, b"\xc1", chunk_headers(chunk_of(1, range(2)), "bulk")))
    ((received, on_delivery),) = bench.reported
    assert received.value == b"\xc1"
    for _ in range(deliveries):
        assert bench.acknowledged == []
        on_delivery(None)
    assert bench.acknowledged == [0]


@pytest.mark.parametrize("value", [None, b"", b"nothing", encode(chunk_of(1, range(0)))])
def test_tombstones_and_empty_chunks_are_unreadable(value: bytes | None) -> None:
    bench = Bench()
    bench.handle(raw(0, value, kind_headers(Chunk)))
    assert len(bench.reported) == 1
    assert bench.queues.item_count == 0


NUMBERS: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [  # job, call, item
    ({"deadline_s": float("nan")}, {}, {}),
    ({"deadline_s": float("inf")}, {}, {}),
    ({}, {"begin_by_s": float("nan")}, {}),
    ({"day": 2**31}, {}, {}),
    ({"day": -1}, {}, {}),
    ({}, {}, {"index": 2**31}),
    ({}, {}, {"index": -1}),
    ({}, {}, {"attempt": 2**15}),
    ({}, {}, {"attempt": 0}),
    ({}, {}, {"token_count": -1}),
]


@pytest.mark.parametrize(("of_job", "of_call", "of_item"), NUMBERS)
def test_numbers_out_of_range_are_unreadable(
    of_job: dict[str, Any], of_call: dict[str, Any], of_item: dict[str, Any]
) -> None:
    bench = Bench()
    change = msgspec.structs.replace
    call = call_of(1)
    assert call.job.call is not None
    if of_call:
        of_job = {"call": change(call.job.call, **of_call)}
    item = change(call.items[0], **of_item)
    good = chunk_of(1, range(1))
    chunk = Chunk(change(good.job, **of_job), [item])
    bench.handle(raw(0, encode(chunk), chunk_headers(good, "bulk")))
    assert len(bench.reported) == 1
    assert bench.queues.item_count == 0


def test_newer_schema_raises_and_is_not_acknowledged() -> None:
    bench = Bench()
    with pytest.raises(SchemaTooNewError):
        bench.handle(raw(0, b"", [("kind", b"chunk"), ("schema", b"2")]))
    assert bench.acknowledged == []


def test_revoked_partitions_are_forgotten() -> None:
    bench = Bench()
    bench.handle(record(0, chunk_of(1, range(10))))
    bench.handler.on_revoke([PARTITION])
    assert bench.queues.item_count == bench.queues.byte_count == bench.acks.open_count == 0


async def check(bench: Bench, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Run the check of redeliveries until nothing is unchecked."""
    queued = asyncio.Event()
    task = asyncio.create_task(bench.handler.check_redeliveries(queued.set))
    await asyncio.sleep(0)  # the first query runs in its thread
    meanwhile()
    async with asyncio.timeout(20):
        while bench.queues.reserved_count:
            await queued.wait()
            queued.clear()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_finished_redelivered_items_are_settled_without_dispatch() -> None:
    bench = Bench({1: {0, 1, 2}, 2: set(range(10))}, end=3)
    for offset in range(3):
        bench.handle(record(offset, chunk_of(offset + 1, range(10))))
    bench.handle(record(3, chunk_of(9, range(50, 60))))  # new: not looked up
    assert bench.queues.item_count == 10
    await check(bench)
    assert bench.lookups == [[UUID(int=1), UUID(int=2), UUID(int=3)]]
    assert bench.queues.waiting() == {"p": 7 + 0 + 10 + 10}
    for chunk in bench.queues.snapshot():
        bench.queues.remove(chunk)
        bench.acks.settle(chunk.ticket, len(chunk.items))
    assert bench.acknowledged == [0, 1, 2, 3]


async def test_record_arriving_during_a_query_is_checked_by_the_next() -> None:
    bench = Bench({}, end=10)
    bench.handle(record(0, chunk_of(1, range(10))))
    await check(bench, lambda: bench.handle(record(1, chunk_of(2, range(10, 20)))))
    assert bench.indexes() == list(range(20))


def is_full(bench: Bench) -> bool:
    return bench.queues.is_full


async def test_buffered_and_unchecked_items_share_one_bound() -> None:
    bench = Bench({2: set(range(50))}, end=10)
    bench.handle(record(10, chunk_of(1, range(50))))
    assert not is_full(bench)
    bench.handle(record(0, chunk_of(2, range(50))))
    assert is_full(bench)
    await check(bench)
    assert not is_full(bench)


async def test_unchecked_chunks_are_bounded_in_bytes() -> None:
    bench = Bench({}, end=10, bytes_max=4000)
    for offset in range(2):
        assert not is_full(bench)
        bench.handle(record(offset, chunk_of(offset + 1, range(10))))
    assert is_full(bench)
    await check(bench)
    assert is_full(bench)
    assert bench.queues.item_count == 20


async def test_chunk_revoked_during_its_query_is_forgotten() -> None:
    bench = Bench({}, end=10)
    bench.handle(record(0, chunk_of(1, range(10))))
    await check(bench, lambda: bench.handler.on_revoke([PARTITION]))
    assert bench.queues.item_count == 0


@pytest.mark.parametrize("is_revoked", [False, True])
async def test_redelivered_chunk_waits_for_the_database_unless_it_is_revoked(
    monkeypatch: pytest.MonkeyPatch, is_revoked: bool
) -> None:
    monkeypatch.setattr("batcher.inbound.record_handler._RETRY_S", 0.001)
    bench = Bench({1: {0, 1}}, end=10)
    bench.is_database_available = False
    bench.handle(record(0, chunk_of(1, range(10))))
    task = asyncio.create_task(bench.handler.check_redeliveries(lambda: None))
    await until_true(lambda: len(bench.lookups) > 1)
    assert (bench.queues.reserved_count, bench.queues.item_count) == (10, 0)
    if is_revoked:
        bench.handler.on_revoke([PARTITION])
    else:
        bench.is_database_available = True
    await until_true(lambda: bench.queues.reserved_count == 0)
    task.cancel()
    assert bench.indexes() == ([] if is_revoked else [*range(2, 10)])


@pytest.mark.parametrize(("is_available", "kept"), [(True, [2]), (False, [1, 2])])
async def test_finished_durable_call_is_not_executed_again_but_waits_for_no_database(
    is_available: bool, kept: list[int]
) -> None:
    bench = Bench({1: {0}}, end=2)
    bench.is_database_available = is_available
    for number in (1, 2):
        bench.handle(record(number - 1, call_of(number, durable=True)))
    await check(bench)
    assert sorted(chunk.job.job_id.int for chunk in bench.queues.snapshot()) == kept
    assert bench.acknowledged == [0] * is_available


def test_call_without_live_caller_is_acknowledged_at_arrival() -> None:
    bench = Bench()
    bench.dead_callers |= {UUID(int=1), UUID(int=2)}
    bench.handle(record(0, call_of(1)))
    bench.handle(record(1, chunk_of(2, range(10))))  # an item of a batch has no caller
    assert bench.acknowledged == [0]
    assert bench.queues.item_count == 10


def test_backlogged_calls_are_marked_as_redelivered_without_a_lookup() -> None:
    bench = Bench({}, end=2)
    for offset in range(3):
        bench.handle(record(offset, call_of(offset + 1)))
    bench.handle(record(3, call_of(4, redelivered=True)))  # marked when it was requeued
    marked = {chunk.job.job_id.int: chunk.redelivered for chunk in bench.queues.snapshot()}
    assert marked == {1: True, 2: True, 3: False, 4: True}
    assert bench.queues.reserved_count == 0


async def test_rest_of_a_checked_chunk_stays_marked() -> None:
    bench = Bench({1: {0}}, end=1)
    bench.handle(record(0, chunk_of(1, range(10))))
    await check(bench)
    (chunk,) = bench.queues.snapshot()
    assert chunk.redelivered
    assert chunk.split(3).redelivered
