"""Goal: the batches of a burst share a partition, and no partition gets what others should."""

from collections import Counter

from batcher.policy.spreading import TOGETHER_MAX, Spread

PARTITIONS = [2, 3, 5, 7]


def test_the_batches_of_a_burst_lie_together_and_the_next_burst_elsewhere() -> None:
    spread = Spread()
    first = {spread.partition(PARTITIONS, now_s=1.0 + step / 1000) for step in range(3)}
    second = {spread.partition(PARTITIONS, now_s=1.004 + step / 1000) for step in range(3)}
    assert (len(first), len(second), first & second) == (1, 1, set())


def test_a_long_burst_is_spread_evenly() -> None:
    spread = Spread()
    count = 3 * len(PARTITIONS) * TOGETHER_MAX
    found = Counter(spread.partition(PARTITIONS, now_s=1.0) for _ in range(count))
    assert found == dict.fromkeys(PARTITIONS, 3 * TOGETHER_MAX)


def test_partitions_may_move_between_two_batches() -> None:
    spread = Spread()
    assert spread.partition(PARTITIONS, now_s=1.0) in PARTITIONS
    assert spread.partition([9], now_s=1.001) == 9
