"""Goal: a pool is what its replicas said lately, no more."""

from dataclasses import dataclass

from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.windows import PoolCapacity
from topics.records.codec import encode, kind_headers
from topics.records.received import Received
from topics.records.records import Capacity


@dataclass
class HeldClock:
    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_s(self) -> float:
        return self.now_s


def said(
    replica: str,
    rate: float,
    *,
    pool: str = "a",
    job_class: str = "bulk",
    available: bool = True,
    epoch: int = 1,
) -> Received:
    capacity = Capacity(replica, epoch, pool, job_class, [0], {}, rate, 4, available)
    value = encode(capacity)
    key = f"{replica}:{job_class}".encode()
    return Received("capacity", 0, 0, key, kind_headers(Capacity), value, 0)


def test_available_bulk_replicas_add_up() -> None:
    capacities = PoolCapacities(HeldClock())
    for record in (
        said("r1", 10),
        said("r2", 5),
        said("r3", 7, pool="b"),
        said("r4", 9, pool="b", available=False),
        said("r5", 9, job_class="interactive"),
        said("r1", 9, job_class="interactive"),
    ):
        capacities.update([record])
    assert capacities.pools() == {"a": PoolCapacity(15, 8), "b": PoolCapacity(7, 4)}


def test_the_newest_word_counts_and_silence_voids_it() -> None:
    clock = HeldClock()
    capacities = PoolCapacities(clock)
    capacities.update([said("r1", 10)])
    clock.now_s = 2.0
    capacities.update([said("r2", 20)])
    capacities.update([said("r2", 30)])
    assert capacities.pools() == {"a": PoolCapacity(40, 8)}
    clock.now_s = 3.0
    assert capacities.pools() == {"a": PoolCapacity(30, 4)}
    clock.now_s = 5.0
    assert capacities.pools() == {}


def test_a_pool_begins_with_its_newest_replica_or_epoch() -> None:
    clock = HeldClock()
    capacities = PoolCapacities(clock)
    began = {}
    for second, record in enumerate(
        (
            said("r1", 10),
            said("r1", 10),
            said("r2", 10, pool="b"),
            said("r2", 10, pool="b"),
            said("r1", 10, epoch=2),
            said("r3", 10, job_class="interactive"),
        )
    ):
        clock.now_s = float(second)
        capacities.update([record])
        began[second] = capacities.joined_s()
    assert began[1] == {"a": 0.0}
    assert began[3] == {"a": 0.0, "b": 2.0}
    assert began[5] == {"a": 4.0, "b": 2.0}
    clock.now_s = 20.0  # all have fallen silent meanwhile
    capacities.pools()
    capacities.update([said("r1", 10, epoch=2)])
    assert capacities.joined_s() == {"a": 20.0, "b": 2.0}


def test_a_tombstone_removes_a_replica() -> None:
    capacities = PoolCapacities(HeldClock())
    capacities.update([said("r1", 10)])
    capacities.update([Received("capacity", 0, 1, b"r1:bulk", [], None, 0)])
    assert capacities.pools() == {}
