"""Goal: batches of a burst share a partition, and all partitions are used evenly."""

import random
from collections import Counter
from itertools import count

from batcher.policy.sticky_partitioner import STICKY_BATCHES_MAX, STICKY_S, StickyPartitioner

PARTITIONS = [2, 3, 5, 7]


def test_batches_of_a_burst_share_a_partition() -> None:
    places = count()
    spread = StickyPartitioner(lambda _: next(places))
    first = {spread.partition(PARTITIONS, now_s=1.0 + step / 1000) for step in range(3)}
    second = {spread.partition(PARTITIONS, now_s=1.004 + step / 1000) for step in range(3)}
    assert (first, second) == ({2}, {3})


def test_long_burst_is_spread_evenly() -> None:
    spread = StickyPartitioner(lambda _: 1)
    total = 3 * len(PARTITIONS) * STICKY_BATCHES_MAX
    found = Counter(spread.partition(PARTITIONS, now_s=1.0) for _ in range(total))
    assert found == dict.fromkeys(PARTITIONS, 3 * STICKY_BATCHES_MAX)


def test_alternating_bursts_reach_every_partition() -> None:
    spread = StickyPartitioner(random.Random(1).randrange)
    found: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for burst in range(400):
        partition = spread.partition(PARTITIONS, now_s=2 * burst * STICKY_S)
        found[burst % 2][partition] += 1
    assert all(min(one[partition] for partition in PARTITIONS) > 25 for one in found)


def test_partitions_may_change_between_batches() -> None:
    spread = StickyPartitioner(lambda _: 3)
    assert spread.partition(PARTITIONS, now_s=1.0) == 7
    assert spread.partition([9], now_s=1.001) == 9
