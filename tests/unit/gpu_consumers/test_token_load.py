"""Goal: a replica publishes the weighted tokens of what is here and has not ended."""

from uuid import uuid4

import pytest

from gpu_consumers.flow_control.token_load import TokenLoad
from tests.unit.gpu_consumers.replicas import job_ref
from topics.records.records import Batch, Chunk, Item


def batch_of(count: int, *, charged: float | None) -> Batch:
    """Return a batch of items of 10 estimated tokens each."""
    items = [Item(n, f"c{n}", b"{}", 10) for n in range(count)]
    return Batch(uuid4(), "b", [Chunk(job_ref(1), items, charged=charged)])


def test_items_count_with_what_their_batcher_charged_until_they_end() -> None:
    load = TokenLoad()
    first, second = batch_of(4, charged=100.0), batch_of(2, charged=10.0)
    load.add(first, 4)
    load.add(second, 2)
    assert load.tokens == pytest.approx(110.0)
    load.remove(first, 3)
    assert load.tokens == pytest.approx(35.0)
    load.remove(first, 1)
    load.remove(second, 2)
    assert load.tokens == 0.0


def test_without_a_charge_the_estimate_counts() -> None:
    load = TokenLoad()
    load.add(batch_of(3, charged=None), 3)
    assert load.tokens == pytest.approx(30.0)


def test_a_batch_that_is_delivered_twice_ends_twice() -> None:
    load, batch = TokenLoad(), batch_of(2, charged=20.0)
    load.add(batch, 2)
    load.add(batch, 2)
    load.remove(batch, 2)
    assert load.tokens == pytest.approx(20.0)
    load.remove(batch, 2)
    load.remove(batch, 2)  # more ends than arrivals count for nothing
    assert load.tokens == 0.0
    load.add(batch, 0)
    assert load.tokens == 0.0
