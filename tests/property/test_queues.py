"""Goal: no buffered item is lost, duplicated or reordered in its job; the lowest rank is first."""

import weakref
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from batcher.faust_app.ordered_acks import AckTicket
from batcher.policy.indexed_priority_queue import IndexedPriorityQueue
from batcher.queueing.buffered_chunk import BufferedChunk, batch_key_of
from batcher.queueing.queues import BATCH_BYTES_MAX, Queues
from tests.unit.batcher.builders import items_of, job_ref
from topics.records.records import JobRef

TENANTS = [UUID(int=n) for n in range(1, 4)]


def job_of(number: int, **fields: Any) -> JobRef:
    """Return job `number`, by default of one of three tenants."""
    tenant_id = TENANTS[number % len(TENANTS)]
    return job_ref(1000 + number, **({"tenant_id": tenant_id} | fields))


def buffered_chunk(
    job: JobRef, indexes: range, tokens: int = 10, body: bytes = b"{}"
) -> BufferedChunk:
    items = items_of(indexes, tokens=tokens, body=body)
    return BufferedChunk(job, items, AckTicket(("requests.bulk", 0), None, len(items), 0.0))


def unbounded(*chunks: BufferedChunk) -> Queues:
    queues = Queues(items_max=10**9, bytes_max=10**12)
    for chunk in chunks:
        queues.add(chunk, now_s=0.0)
    return queues


def pop(
    queues: Queues, *, item_count_max: int = 100, token_count_max: int = 10**6
) -> list[BufferedChunk]:
    """Return the next batch of pool `p`."""
    lane = queues.pools["p"].by_fairness()[0]
    return queues.pop_batch(lane, item_count_max=item_count_max, token_count_max=token_count_max)


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "take", "take", "remove"]),
        st.integers(0, 8),
        st.integers(1, 120),
        st.integers(0, 300),
    ),
    max_size=120,
)


@settings(deadline=None)
@given(steps)
def test_every_item_is_popped_once_and_in_order(steps: list[tuple[str, int, int, int]]) -> None:
    queues = unbounded()
    next_index = dict.fromkeys(range(9), 0)
    put: set[tuple[UUID, int]] = set()
    gone: list[tuple[UUID, int]] = []
    for action, choice, count, tokens in steps:
        if action == "add":
            job = job_of(choice, pool=f"p{choice % 2}")
            first = next_index[choice]
            next_index[choice] += count
            put |= {(job.job_id, index) for index in range(first, first + count)}
            queues.add(buffered_chunk(job, range(first, first + count), tokens), now_s=0.0)
        elif action == "take":
            for pool in queues.pools.values():
                for lane in pool.by_fairness():
                    taken = queues.pop_batch(lane, item_count_max=count, token_count_max=1000)
                    items = [(h.job.job_id, item) for h in taken for item in h.items]
                    assert 1 <= len(items) <= count
                    assert len(items) == 1 or sum(i.token_count for _, i in items) <= 1000
                    gone += [(job_id, item.index) for job_id, item in items]
        else:
            for held in list(queues.snapshot())[:1]:
                queues.remove(held)
                gone += [(held.job.job_id, item.index) for item in held.items]
                # Requeued: it is delivered again, after records read meanwhile.
                gone = gone[: -len(held.items)]
                queues.add(BufferedChunk(held.job, held.items, held.ticket), now_s=0.0)
        assert queues.item_count == len(put) - len(gone)
        assert queues.item_count == sum(queues.waiting().values())
        assert queues.byte_count == sum(held.byte_count for held in queues.snapshot())
    assert len(gone) == len(set(gone))
    assert set(gone) | {(h.job.job_id, i.index) for h in queues.snapshot() for i in h.items} == put
    for number in range(9):
        ours = [index for job_id, index in gone if job_id == UUID(int=1000 + number)]
        assert ours == sorted(ours)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=30), st.integers(1, 100))
def test_backlogged_tenants_get_equal_tokens(order: list[int], count: int) -> None:
    queues = unbounded()
    served = dict.fromkeys(TENANTS, 0)
    next_index = dict.fromkeys(range(3), 0)

    def refill(tenant: int) -> None:
        first = next_index[tenant]
        next_index[tenant] += 100
        queues.add(buffered_chunk(job_of(tenant), range(first, first + 100)), now_s=0.0)

    for tenant in (0, 1, 2, *order):
        refill(tenant)
    for _ in range(60):
        holding = {held.job.tenant_id for held in queues.snapshot()}
        for tenant in range(3):
            if TENANTS[tenant] not in holding:
                refill(tenant)
        for held in pop(queues, item_count_max=count):
            served[held.job.tenant_id] += held.token_count
        assert max(served.values()) - min(served.values()) <= 100 * 10


def test_queues_are_work_conserving_with_the_lowest_index_first() -> None:
    chunks = [buffered_chunk(job_of(number), range(1)) for number in range(9)]
    queues = unbounded(buffered_chunk(job_of(0), range(100, 101)), *chunks)
    popped = pop(queues)
    assert [c.items[0].index for c in popped if c.job.job_id == job_of(0).job_id] == [0, 100]
    assert len(popped) == 10
    assert not queues.pools["p"].batch_keys
    assert queues.item_count == queues.byte_count == 0


def test_only_the_first_chunk_of_a_batch_is_split_and_a_large_item_is_alone() -> None:
    queues = unbounded(buffered_chunk(job_of(0), range(60)), buffered_chunk(job_of(1), range(100)))
    batches = [pop(queues, item_count_max=limit) for limit in (100, 30, 100)]
    assert [[len(chunk.items) for chunk in batch] for batch in batches] == [[60], [30], [70]]
    large = unbounded(buffered_chunk(job_of(0), range(3), tokens=5000))
    assert [len(chunk.items) for chunk in pop(large, token_count_max=100)] == [1]


def test_tenants_take_turns_within_a_batch_and_a_tenant_alone_is_not_split() -> None:
    def batch(*chunks: BufferedChunk) -> list[tuple[int, int]]:
        queue = unbounded(*chunks)
        lane = queue.pools["p"].by_fairness()[0]
        popped = queue.pop_batch(lane, item_count_max=100, token_count_max=10**6, turn_items_max=30)
        return [(TENANTS.index(chunk.job.tenant_id), len(chunk.items)) for chunk in popped]

    first, second = (buffered_chunk(job_of(number), range(100)) for number in (0, 1))
    assert batch(first, second) == [(0, 30), (1, 30), (0, 30), (1, 10)]
    assert batch(buffered_chunk(job_of(0), range(100))) == [(0, 100)]


def test_batch_is_bounded_in_bytes() -> None:
    large = (buffered_chunk(job_of(n), range(1), body=b"x" * 250_000) for n in range(9))
    taken = pop(unbounded(*large))
    assert len(taken) > 1
    assert sum(held.byte_count for held in taken) <= BATCH_BYTES_MAX


def test_batch_keys_are_separate_and_share_tenant_counters() -> None:
    queues = unbounded()
    tenant, other = TENANTS[:2]
    queues.add(buffered_chunk(job_of(0, tenant_id=tenant), range(10), tokens=100), now_s=0.0)
    queues.add(buffered_chunk(job_of(1, tenant_id=tenant, model="n"), range(10)), now_s=0.0)
    pool = queues.pools["p"]
    first, second = pool.by_fairness()
    assert first.key != second.key
    queues.pop_batch(first, item_count_max=10, token_count_max=10**6)
    # A newcomer starts level with the tenant that was served, so both may be next.
    queues.add(
        buffered_chunk(job_of(2, tenant_id=other, endpoint="/v1/chat"), range(10)), now_s=0.0
    )
    assert len(pool.by_fairness()) == 2
    assert pool.counters.counter(other) == pool.counters.counter(tenant)
    assert batch_key_of(job_of(2, endpoint="/v1/chat")) in pool.batch_keys


def test_queues_are_full_by_items_and_by_bytes() -> None:
    by_items, by_bytes = Queues(items_max=5, bytes_max=10**9), Queues(items_max=99, bytes_max=1000)
    for queues in (by_items, by_bytes):
        assert not queues.is_full
        queues.add(buffered_chunk(job_of(0), range(5)), now_s=0.0)
        assert queues.is_full


class CountedId(UUID):
    """An id that counts how often it is looked up."""

    lookups = 0

    def __hash__(self) -> int:
        CountedId.lookups += 1
        return super().__hash__()


def lookups_of_a_batch(job_count: int) -> int:
    queues = unbounded()
    for number in range(job_count):
        job = replace(job_of(0), job_id=CountedId(int=number + 1))
        queues.add(buffered_chunk(job, range(1)), now_s=0.0)
    CountedId.lookups = 0
    assert len(pop(queues, item_count_max=50)) == 50
    return CountedId.lookups


def test_cost_of_a_batch_is_independent_of_the_number_of_jobs() -> None:
    assert lookups_of_a_batch(2000) < 2 * lookups_of_a_batch(100)


changes = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove"]), st.integers(0, 9), st.integers(0, 5)),
    max_size=400,
)


@given(changes)
def test_first_is_the_lowest_in_insertion_order(changes: list[tuple[str, int, int]]) -> None:
    ordering: IndexedPriorityQueue[int, float] = IndexedPriorityQueue()
    places: dict[int, float] = {}  # in the order in which they came
    for action, client, place in changes:
        if action == "put":
            ordering.set_priority(client, place)
            places[client] = place
        else:
            ordering.remove(client)
            places.pop(client, None)
        assert len(ordering) == len(places)
        assert [c in ordering for c in range(10)] == [c in places for c in range(10)]
        if places:
            first = ordering.first()
            assert first == min(places, key=places.__getitem__)
            assert ordering.priority(first) == places[first]


class Chunk:
    """Something large."""


def test_removed_keys_are_freed_and_entries_bounded() -> None:
    """As in a pool that is away: nobody asks who is first."""
    ordering: IndexedPriorityQueue[Chunk, float] = IndexedPriorityQueue()
    stays = Chunk()
    ordering.set_priority(stays, 0.0)
    left: list[weakref.ref[Chunk]] = []
    for _ in range(1000):
        chunk = Chunk()
        ordering.set_priority(chunk, 1.0)
        ordering.set_priority(stays, -1.0 * len(left))
        ordering.remove(chunk)
        left.append(weakref.ref(chunk))
        del chunk
    assert not any(ref() for ref in left)
    assert len(ordering._heap) < 20
    assert ordering.first() is stays
