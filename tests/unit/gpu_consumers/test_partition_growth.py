"""Goal: a pool has a partition for each replica, and grows seldom."""

import pytest

from gpu_consumers.partition_growth import (
    CHECK_S,
    PARTITIONS_MAX,
    PartitionGrowth,
    partitions_needed,
)
from tests.support.until import until


@pytest.mark.parametrize(
    ("count", "members", "needed"),
    [
        (8, 1, 8),
        (8, 8, 8),
        (8, 9, 16),
        (8, 100, 128),
        (12, 13, 24),
        (600, 700, PARTITIONS_MAX),
        (8, 10_000, PARTITIONS_MAX),
        (2000, 3000, 2000),
    ],
)
def test_partitions_double_until_each_member_has_one(count: int, members: int, needed: int) -> None:
    assert partitions_needed(count, members) == needed


class Clock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


def test_a_replica_looks_again_while_it_has_no_partition() -> None:
    clock, grows = Clock(), [False, True]
    looks: list[float] = []

    def grow() -> bool:
        looks.append(clock.now_s)
        return grows.pop(0)

    growth = PartitionGrowth(grow, clock)
    for second, has_partitions in enumerate([True, False, True, False]):
        clock.now_s = float(second)
        assert not growth.has_grown(has_partitions)
    assert looks == []
    clock.now_s = 3 + CHECK_S
    assert not growth.has_grown(has_partitions=False)
    until(lambda: len(looks) == 1)
    assert not growth.has_grown(has_partitions=False)
    clock.now_s += CHECK_S
    until(lambda: growth.has_grown(has_partitions=False))
    assert len(looks) == 2
    assert not growth.has_grown(has_partitions=False)
