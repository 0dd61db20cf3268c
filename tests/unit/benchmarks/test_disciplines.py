"""Goal: the orders that benchmarks compare are what their names say."""

from collections.abc import Sequence

import pytest

from batcher.queueing.queues import Queues
from benchmarks.children.disciplines import DISCIPLINES
from benchmarks.stacks.stack import role_of
from tests.unit.batcher.builders import buffered, job_ref


def order_of(name: str, jobs: Sequence[tuple[int, int, int]], *, batch_items: int = 10) -> str:
    """Return the jobs of all batches in order, one letter a chunk of ten items.

    Each of `jobs` is its tenant, its priority and its chunks.
    """
    discipline = DISCIPLINES[name]()
    queues = Queues(
        items_max=10_000,
        bytes_max=1 << 30,
        rank=discipline.rank,
        next_tenant=discipline.next_tenant,
    )
    for number, (tenant, priority, chunks) in enumerate(jobs, start=1):
        job = job_ref(number, tenant_id=job_ref(tenant).tenant_id, priority=priority)
        for chunk in range(chunks):
            queues.add(buffered(job, range(10 * chunk, 10 * chunk + 10)), now_s=number)
    letters = ""
    (pool,) = queues.pools.values()
    while queues.item_count:
        (queue,) = pool.batch_keys.values()
        popped = queues.pop_batch(queue, item_count_max=batch_items, token_count_max=10**9)
        letters += "".join("?ABCDEF"[chunk.job.job_id.int] for chunk in popped)
    return letters


MIXED = [(1, 5, 3), (2, 9, 1), (1, 7, 1), (3, 5, 2)]


@pytest.mark.parametrize("batch_items", [10, 20, 15])
@pytest.mark.parametrize(
    ("name", "order"),
    [("fifo", "AAABCDD"), ("strict_priority", "BCAAADD"), ("round_robin", "ABDADAC")],
)
def test_jobs_are_served_in_this_order(name: str, order: str, batch_items: int) -> None:
    assert order_of(name, MIXED, batch_items=batch_items) == order


def test_a_tenant_keeps_its_turn_until_its_items_leave() -> None:
    # Every batch of 15 has no space for a second chunk of ten.
    assert order_of("round_robin", [(1, 5, 2), (2, 5, 2), (3, 5, 2)], batch_items=15) == "ABCABC"


def test_the_replaced_batcher_is_counted_as_the_batcher() -> None:
    command_line = ["/x/python", "-P", "-m", "benchmarks.children.discipline_batcher", "fifo"]
    assert role_of(command_line) == "batcher"
