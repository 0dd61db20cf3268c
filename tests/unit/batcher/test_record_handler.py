"""Goal: every record is taken over once, and what has ended is not executed again."""

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
from batcher.queueing.drop_policy import DropPolicy
from batcher.queueing.queues import Queues
from core.clock import SystemClock
from core.errors import SchemaTooNewError
from core.states import CloseReason
from topics.clients.producer import OnDelivery
from topics.records.codec import encode, kind_headers
from topics.records.headers import chunk_headers
from topics.records.received import Received
from topics.records.records import CallRef, Chunk, Item, JobControl, JobRef

PARTITION = ("requests.bulk", 3)


def call_of(request: int, *, redelivered: bool = False, durable: bool = False) -> Chunk:
    call = CallRef("api-1", 3, durable=durable)
    job = msgspec.structs.replace(chunk_of(request, range(1)).job, call=call)
    return Chunk(job, [Item(0, "", b"{}", 1)], redelivered=redelivered)


def chunk_of(job: int, indexes: range) -> Chunk:
    ref = JobRef(
        job_id=UUID(int=job),
        day=1,
        tenant_id=UUID(int=job),
        model="m",
        model_version="1",
        pool="p",
        endpoint="/v1/embeddings",
        input_key="k",
        deadline_s=1e9,
    )
    return Chunk(ref, [Item(index, f"c{index}", b"{}", 1) for index in indexes])


def record(offset: int, chunk: Chunk) -> Received:
    headers = chunk_headers(chunk, "bulk") if chunk.items else kind_headers(Chunk)
    return raw(offset, encode(chunk), headers)


def raw(offset: int, value: bytes | None, headers: list[tuple[str, bytes]]) -> Received:
    return Received(*PARTITION, offset, None, headers, value, 0)


class World:
    """Arrivals whose every callback is recorded."""

    def __init__(self, ended: dict[int, set[int]] | None = None, *, bytes_max: int = 10**9) -> None:
        self.acknowledged: list[object] = []
        self.acks = OrderedAcks(self.acknowledged.append)
        self.queues = Queues(items_max=100, bytes_max=bytes_max)
        self.closed: set[UUID] = set()
        self.dead_callers: set[UUID] = set()
        self.reported: list[tuple[Received, OnDelivery]] = []
        self.reports_of_a_record = 2
        self.asked: list[list[UUID]] = []
        self.is_away = False  # the database
        self._ended = ended
        self.arrivals = RecordHandler(
            self.queues,
            self.acks,
            drop_policy=DropPolicy(self, DatabaseClock(SystemClock(), None), self.is_gone),
            find_finished=None if ended is None else self._finished,
            clock=SystemClock(),
        )

    def newer(self, job: JobRef) -> JobControl | None:
        """Every closed job has a newer state."""
        if job.job_id not in self.closed:
            return None
        return JobControl(job.job_id, job.version + 1, closed=CloseReason.CANCELLED)

    def is_gone(self, job: JobRef, /, *, since_s: float) -> bool:
        assert since_s > 0
        return job.job_id in self.dead_callers

    def take(self, received: Received) -> None:
        self.arrivals.handle_record(
            received, received.offset, report_unreadable=self._report, settle=self._settle
        )

    def _finished(self, chunks: Sequence[BufferedChunk]) -> list[set[int]] | None:
        assert self._ended is not None
        self.asked.append([held.job.job_id for held in chunks])
        if self.is_away:
            return None
        return [self._ended.get(held.job.job_id.int, set()) for held in chunks]

    def _report(self, received: Received, on_delivery: OnDelivery) -> int:
        self.reported.append((received, on_delivery))
        return self.reports_of_a_record

    def _settle(self, ticket: AckTicket, item_count: int) -> OnDelivery:
        return lambda failure: self.acks.settle(ticket, item_count)

    def indexes(self) -> list[int]:
        return sorted(item.index for held in self.queues.snapshot() for item in held.items)


def test_items_are_held_until_they_are_settled() -> None:
    world = World()
    world.take(record(0, chunk_of(1, range(10))))
    (held,) = world.queues.snapshot()
    assert world.queues.item_count == 10
    assert world.acknowledged == []
    world.queues.remove(held)
    world.acks.settle(held.ticket, 10)
    assert world.acknowledged == [0]


def test_items_of_a_closed_job_are_acknowledged_at_arrival() -> None:
    world = World()
    world.closed.add(UUID(int=1))
    world.take(record(0, chunk_of(1, range(10))))
    assert world.acknowledged == [0]
    assert world.queues.item_count == 0


@pytest.mark.parametrize("deliveries", [1, 2])
def test_an_unreadable_record_is_acknowledged_when_all_it_left_is_durable(deliveries: int) -> None:
    world = World()
    world.reports_of_a_record = deliveries
    world.take(raw(0, b"\xc1", chunk_headers(chunk_of(1, range(2)), "bulk")))
    ((received, on_delivery),) = world.reported
    assert received.value == b"\xc1"
    for _ in range(deliveries):
        assert world.acknowledged == []
        on_delivery(None)
    assert world.acknowledged == [0]


@pytest.mark.parametrize("value", [None, b"", b"nothing", encode(chunk_of(1, range(0)))])
def test_tombstones_and_empty_chunks_are_unreadable(value: bytes | None) -> None:
    world = World()
    world.take(raw(0, value, kind_headers(Chunk)))
    assert len(world.reported) == 1
    assert world.queues.item_count == 0


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
def test_numbers_that_nobody_emits_are_unreadable(
    of_job: dict[str, Any], of_call: dict[str, Any], of_item: dict[str, Any]
) -> None:
    world = World()
    change = msgspec.structs.replace
    call = call_of(1)
    assert call.job.call is not None
    if of_call:
        of_job = {"call": change(call.job.call, **of_call)}
    item = change(call.items[0], **of_item)
    good = chunk_of(1, range(1))
    chunk = Chunk(change(good.job, **of_job), [item])
    world.take(raw(0, encode(chunk), chunk_headers(good, "bulk")))
    assert len(world.reported) == 1
    assert world.queues.item_count == 0


def test_a_newer_schema_is_not_touched() -> None:
    world = World()
    with pytest.raises(SchemaTooNewError):
        world.take(raw(0, b"", [("kind", b"chunk"), ("schema", b"2")]))
    assert world.acknowledged == []


def test_revoked_partitions_leave_nothing_behind() -> None:
    world = World()
    world.take(record(0, chunk_of(1, range(10))))
    world.arrivals.on_revoke([PARTITION])
    assert world.queues.item_count == world.queues.byte_count == world.acks.open_count == 0


async def check(world: World, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Let the check of redeliveries run until it has nothing to do."""
    queued = asyncio.Event()
    task = asyncio.create_task(world.arrivals.check_redeliveries(queued.set))
    await asyncio.sleep(0)  # the first query runs in its thread
    meanwhile()
    async with asyncio.timeout(5):
        while world.queues.reserved_count:
            await queued.wait()
            queued.clear()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_redelivered_items_that_have_ended_are_settled_unsent() -> None:
    world = World({1: {0, 1, 2}, 2: set(range(10))})
    world.arrivals.on_assign({PARTITION: 3})
    for offset in range(3):
        world.take(record(offset, chunk_of(offset + 1, range(10))))
    world.take(record(3, chunk_of(9, range(50, 60))))  # new: not asked about
    assert world.queues.item_count == 10
    await check(world)
    assert world.asked == [[UUID(int=1), UUID(int=2), UUID(int=3)]]
    assert world.queues.waiting() == {"p": 7 + 0 + 10 + 10}
    for held in world.queues.snapshot():
        world.queues.remove(held)
        world.acks.settle(held.ticket, len(held.items))
    assert world.acknowledged == [0, 1, 2, 3]


async def test_what_arrives_during_a_query_is_checked_by_the_next() -> None:
    world = World({})
    world.arrivals.on_assign({PARTITION: 10})
    world.take(record(0, chunk_of(1, range(10))))
    await check(world, lambda: world.take(record(1, chunk_of(2, range(10, 20)))))
    assert world.indexes() == list(range(20))


async def test_reading_stops_while_too_much_is_unchecked() -> None:
    world = World({})
    world.arrivals.on_assign({PARTITION: 10})
    world.take(record(0, chunk_of(1, range(100))))
    assert world.queues.is_full
    await check(world)
    assert world.queues.is_full


def is_full(world: World) -> bool:
    return world.queues.is_full


async def test_what_is_held_and_what_is_unchecked_have_one_bound_of_items() -> None:
    world = World({2: set(range(50))})
    world.arrivals.on_assign({PARTITION: 10})
    world.take(record(10, chunk_of(1, range(50))))
    assert not is_full(world)
    world.take(record(0, chunk_of(2, range(50))))
    assert is_full(world)
    await check(world)
    assert not is_full(world)


async def test_what_is_unchecked_is_bounded_in_bytes_too() -> None:
    world = World({}, bytes_max=4000)
    world.arrivals.on_assign({PARTITION: 10})
    for offset in range(2):
        assert not is_full(world)
        world.take(record(offset, chunk_of(offset + 1, range(10))))
    assert is_full(world)
    await check(world)
    assert is_full(world)
    assert world.queues.item_count == 20


async def test_a_chunk_that_is_revoked_during_its_query_is_forgotten() -> None:
    world = World({})
    world.arrivals.on_assign({PARTITION: 10})
    world.take(record(0, chunk_of(1, range(10))))
    await check(world, lambda: world.arrivals.on_revoke([PARTITION]))
    assert world.queues.item_count == 0


async def begin_away(world: World, monkeypatch: pytest.MonkeyPatch) -> asyncio.Task[None]:
    """Let a redelivered chunk wait for a database that is away."""
    monkeypatch.setattr("batcher.inbound.record_handler._RETRY_S", 0.001)
    world.is_away = True
    world.arrivals.on_assign({PARTITION: 10})
    world.take(record(0, chunk_of(1, range(10))))
    task = asyncio.create_task(world.arrivals.check_redeliveries(lambda: None))
    await eventually(lambda: len(world.asked) > 1)
    assert (world.queues.reserved_count, world.queues.item_count) == (10, 0)
    return task


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  it changes in another task
            await asyncio.sleep(0.001)


async def test_what_may_have_ended_waits_for_a_database_that_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({1: {0, 1}})
    task = await begin_away(world, monkeypatch)
    world.is_away = False
    await eventually(lambda: world.queues.reserved_count == 0)
    task.cancel()
    assert world.indexes() == [*range(2, 10)]


async def test_what_is_revoked_while_the_database_is_away_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World({})
    task = await begin_away(world, monkeypatch)
    world.arrivals.on_revoke([PARTITION])
    await eventually(lambda: world.queues.reserved_count == 0)
    task.cancel()
    assert world.queues.item_count == 0


async def test_a_durable_call_that_has_ended_is_not_executed_again() -> None:
    world = World({1: {0}})
    world.arrivals.on_assign({PARTITION: 2})
    for number in (1, 2):
        world.take(record(number - 1, call_of(number, durable=True)))
    await check(world)
    assert [held.job.job_id.int for held in world.queues.snapshot()] == [2]
    assert world.acknowledged == [0]


async def test_a_durable_call_does_not_wait_for_a_database_that_is_away() -> None:
    world = World({1: {0}})
    world.is_away = True
    world.arrivals.on_assign({PARTITION: 1})
    world.take(record(0, call_of(1, durable=True)))
    await check(world)
    assert world.queues.item_count == 1


def test_a_call_that_nobody_waits_for_is_acknowledged_at_arrival() -> None:
    world = World()
    world.dead_callers |= {UUID(int=1), UUID(int=2)}
    world.take(record(0, call_of(1)))
    world.take(record(1, chunk_of(2, range(10))))  # a batch has no caller that could go
    assert world.acknowledged == [0]
    assert world.queues.item_count == 10


def test_calls_below_the_end_at_assignment_are_marked_and_not_asked_about() -> None:
    world = World({})
    world.arrivals.on_assign({PARTITION: 2})
    for offset in range(3):
        world.take(record(offset, call_of(offset + 1)))
    world.take(record(3, call_of(4, redelivered=True)))  # marked by whoever put it back
    marked = {held.job.job_id.int: held.redelivered for held in world.queues.snapshot()}
    assert marked == {1: True, 2: True, 3: False, 4: True}
    assert world.queues.reserved_count == 0


async def test_what_is_left_of_a_checked_chunk_stays_marked() -> None:
    world = World({1: {0}})
    world.arrivals.on_assign({PARTITION: 1})
    world.take(record(0, chunk_of(1, range(10))))
    await check(world)
    (held,) = world.queues.snapshot()
    assert held.redelivered
    assert held.split(3).redelivered
