"""Goal: demand names the tokens of each pool, and arrivals are counted once and never fall."""

from typing import Any

import pytest
from msgspec.structs import replace

from batcher.faust_app.ordered_acks import AckTicket
from batcher.queueing import pool_arrivals
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.pool_arrivals import PoolArrivals
from batcher.queueing.queues import Queues
from batcher.queueing.token_demand import demand_of_pools
from tests.unit.batcher.builders import job_ref
from tests.unit.batcher.test_record_handler import PARTITION, Bench, call_of, record
from topics.records.chunks import REQUEUED_HEADER
from topics.records.records import Chunk, DemandTokens, Item, JobRef


def chunk_of(job: JobRef, count: int, *, tokens: int, output: int) -> BufferedChunk:
    """Return a chunk of items with so many tokens each, `output` of them expected output."""
    items = [Item(n, f"c{n}", b"{}", tokens, output_token_count=output) for n in range(count)]
    return BufferedChunk(job, items, AckTicket(PARTITION, None, count, 0.0))


def arrived(bench: Bench) -> int:
    """Return the items that count as arrivals of the pool."""
    totals = bench.arrivals.pools.get("p")
    return 0 if totals is None else totals.items


def test_the_tokens_and_the_earliest_deadline_of_what_waits() -> None:
    queues, arrivals = Queues(items_max=100, bytes_max=10**9), PoolArrivals()
    chunks = [
        chunk_of(job_ref(1, deadline_s=900.0), 3, tokens=10, output=4),
        chunk_of(job_ref(2, deadline_s=500.0, endpoint="/v1/completions"), 2, tokens=7, output=1),
        chunk_of(job_ref(3, pool="q", deadline_s=700.0), 1, tokens=5, output=5),
    ]
    for chunk in chunks:
        arrivals.add(chunk)
        queues.add(chunk, now_s=1.0)
    assert demand_of_pools(queues, arrivals) == {
        "p": DemandTokens(30.0, 14.0, 5, 30.0, 14.0, 500.0),
        "q": DemandTokens(0.0, 5.0, 1, 0.0, 5.0, 700.0),
    }
    queues.remove(chunks[1])
    queues.update_ranks()
    assert demand_of_pools(queues, arrivals)["p"] == DemandTokens(18.0, 12.0, 5, 30.0, 14.0, 900.0)


def test_a_part_that_is_dispatched_leaves_the_rest_waiting() -> None:
    queues, arrivals = Queues(items_max=100, bytes_max=10**9), PoolArrivals()
    queues.add(chunk_of(job_ref(1), 4, tokens=10, output=4), now_s=1.0)
    (queue,) = queues.pools["p"].batch_keys.values()
    queues.pop_batch(queue, item_count_max=3, token_count_max=1000)
    assert demand_of_pools(queues, arrivals)["p"].prompt_tokens == 6.0


def test_an_empty_pool_keeps_its_totals_also_when_its_queue_is_forgotten() -> None:
    queues, arrivals = Queues(items_max=100, bytes_max=10**9), PoolArrivals()
    chunk = chunk_of(job_ref(1), 2, tokens=10, output=4)
    arrivals.add(chunk)
    queues.add(chunk, now_s=1.0)
    queues.remove(chunk)
    expected = {"p": DemandTokens(0.0, 0.0, 2, 12.0, 8.0, 0.0)}
    assert demand_of_pools(queues, arrivals) == expected
    assert queues.forget_empty_pools(()) == ["p"]
    assert demand_of_pools(queues, arrivals) == expected


def test_the_pools_that_are_counted_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_arrivals, "POOLS_MAX", 2)
    arrivals = PoolArrivals()
    for pool in ("a", "b", "c", "a"):
        arrivals.add(chunk_of(job_ref(1, pool=pool), 1, tokens=1, output=0))
    assert {name: totals.items for name, totals in arrivals.pools.items()} == {"a": 2, "b": 1}


def test_only_a_first_delivery_is_an_arrival() -> None:
    bench = Bench(end=2)
    bench.handle(record(1, call_of(1)))  # below the end: it may have been dispatched before
    bench.handle(record(2, call_of(2, redelivered=True)))
    requeued = record(3, call_of(3))
    bench.handle(replace(requeued, headers=[*requeued.headers, REQUEUED_HEADER]))
    assert (arrived(bench), bench.queues.item_count) == (0, 3)
    bench.handle(record(4, call_of(4)))
    assert arrived(bench) == 1


def test_an_obsolete_chunk_is_no_arrival() -> None:
    bench = Bench()
    bench.states.close(1)
    bench.handle(record(0, Chunk(job_ref(1), [Item(0, "", b"{}", 1)])))
    assert arrived(bench) == 0


def test_a_deferred_chunk_counts_when_it_is_delivered_and_not_again() -> None:
    bench = Bench(bytes_max=1, deferred_max=10)
    first, second = (record(n, Chunk(job_ref(1), [Item(n, "", b"{}", 3)])) for n in range(2))
    bench.handle(first)
    bench.handle(second)
    assert len(bench.queues.deferred) == 1
    assert arrived(bench) == 2
    queued: Any = next(bench.queues.snapshot())
    bench.queues.remove(queued)
    (deferred,) = bench.queues.take_deferred(1)
    bench.handler.handle_deferred(deferred, second)
    assert (arrived(bench), bench.queues.item_count) == (2, 1)
