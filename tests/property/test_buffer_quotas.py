"""Goal: whatever others have in the buffer, a tenant without items finds room in it."""

from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.buffer_quotas import BufferUsage, TenantPool
from core.limits import CHUNK_ITEMS_MAX

CAPACITY = 40_000
READ_AHEAD = CAPACITY // 2  # what intake makes outstanding for one batcher


def tenant(number: int, pool: str = "p") -> TenantPool:
    return UUID(int=number), pool


def fill(usage: BufferUsage, keys: list[TenantPool], *, chunk: int = CHUNK_ITEMS_MAX) -> None:
    """Add chunks of these tenants in turn until no one may add another."""
    waiting = list(keys)
    while waiting:
        waiting = [key for key in waiting if usage.admits(key)]
        for key in waiting:
            if usage.admits(key):
                usage.add(key, chunk)


steps = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 5), st.integers(1, CHUNK_ITEMS_MAX)), max_size=300
)


@given(steps)
def test_sums_are_those_of_the_chunks_and_exceed_the_capacity_by_one_chunk_at_most(
    steps: list[tuple[int, int, int]],
) -> None:
    usage, chunks = BufferUsage(2000), []
    for number, pool, count in steps:
        key = tenant(number, f"p{pool}")
        if usage.admits(key):
            usage.add(key, count)
            chunks.append((key, count))
        elif chunks:
            removed, removed_count = chunks.pop(number % len(chunks))
            usage.add(removed, -removed_count)
        expected: Counter[TenantPool] = Counter()
        for chunk_key, chunk_count in chunks:
            expected[chunk_key] += chunk_count
        assert usage.by_tenant_pool == expected
        assert usage.total == sum(usage.by_pool.values()) == expected.total()
        assert usage.total < 2000 + CHUNK_ITEMS_MAX


@pytest.mark.parametrize("pools", [1, 2, 7])
@pytest.mark.parametrize("tenants", [1, 4, 50])
def test_equal_tenants_get_what_intake_makes_outstanding_for_them(tenants: int, pools: int) -> None:
    usage = BufferUsage(CAPACITY)
    keys = [tenant(n, f"p{m}") for n in range(tenants) for m in range(pools)]
    fill(usage, keys, chunk=10)
    share = READ_AHEAD // len(keys)
    assert all(usage.by_tenant_pool[key] >= share - 10 for key in keys)
    assert max(usage.by_tenant_pool.values()) <= 2.5 * min(usage.by_tenant_pool.values())


@given(
    earlier=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=300)
)
def test_a_newcomer_finds_room_in_every_pool_that_others_fill(
    earlier: list[tuple[int, int]],
) -> None:
    usage = BufferUsage(CAPACITY)
    keys = [tenant(number, f"p{pool}") for number, pool in earlier]
    fill(usage, keys)
    free = CAPACITY - usage.total
    assert free >= CAPACITY // (1 + 8 * 4) - CHUNK_ITEMS_MAX
    assert usage.admits(tenant(1000, "another"))
    # Full of first chunks, a pool has its newcomers take turns.
    for pool, count in usage.by_pool.items():
        assert usage.admits(tenant(1000, pool)) or count >= 8 * free


@pytest.mark.parametrize("tenants", [1, 4, 50, 250])
def test_a_newcomer_is_admitted_beside_whales_of_its_pool(tenants: int) -> None:
    usage = BufferUsage(CAPACITY)
    fill(usage, [tenant(n) for n in range(tenants)])
    assert usage.admits(tenant(1000))


def test_tenants_of_dead_pools_leave_room_for_a_live_one() -> None:
    usage = BufferUsage(CAPACITY)
    fill(usage, [tenant(n, f"dead-{n % 3}") for n in range(1000)])
    live = [tenant(2000 + n, "live") for n in range(5)]
    fill(usage, live)
    assert all(usage.by_tenant_pool[key] >= CHUNK_ITEMS_MAX for key in live)


def test_a_quota_shrinks_as_soon_as_another_tenant_has_items() -> None:
    usage = BufferUsage(CAPACITY)
    first, second = tenant(1), tenant(2)
    fill(usage, [first])
    alone = usage.by_tenant_pool[first]
    assert READ_AHEAD <= alone < 0.6 * CAPACITY
    fill(usage, [second])
    usage.add(first, -1000)
    assert not usage.admits(first)
    assert usage.admits(second)
