"""Goal: a wake is timed by the first records after its call, and only of its pool."""

import time

from autoscaler.policies.policies import Policies
from autoscaler.policies.policy_reader import read_policies
from benchmarks.stacks.scaled_stack import PoolWatch, policy_text
from topics.records.codec import encode, kind_headers
from topics.records.received_record import ReceivedRecord
from topics.records.records import Capacity, Record, ReplicaGrants
from topics.records.scaling import PoolScaling, WakeRequest

POOL = "p"


def received(record: Record, appended_s: float) -> ReceivedRecord:
    headers = kind_headers(type(record))
    return ReceivedRecord("t", 0, 0, b"k", headers, encode(record), round(appended_s * 1000))


def decided(target: int, at_s: float, *, pool: str = POOL, awake: tuple[str, ...] = ()) -> Record:
    return PoolScaling(
        pool=pool,
        epoch=1,
        sequence=1,
        at_s=at_s,
        mode="active",
        actuator="embedded",
        target=target,
        kinds=[],
        removals=[],
        awake=list(awake),
        standby=1,
        start_s=1.0,
        wake_s=1.0,
    )


def capacity(lifecycle: str, replica_id: str = "r") -> Record:
    return Capacity(
        replica_id=replica_id,
        epoch=0,
        pool=POOL,
        job_class="interactive",
        partitions=[],
        granted={},
        items_per_s=0.0,
        concurrency=1,
        available=False,
        lifecycle=lifecycle,
    )


def credit(*, available: bool = True, pool: str = POOL) -> Record:
    return ReplicaGrants(
        replica_id="r",
        epoch=1,
        pool=pool,
        job_class="interactive",
        partitions=[0],
        granted={},
        concurrency=1,
        available=available,
        in_danger=False,
    )


def test_a_pool_sleeps_when_only_its_warm_pool_is_left() -> None:
    watch, now_s = PoolWatch(POOL), time.time()
    watch.apply([received(decided(0, now_s), now_s)])
    assert watch.is_asleep(0, now_s)
    assert not watch.is_asleep(1, now_s)
    watch.apply([received(capacity("asleep"), now_s)])
    assert watch.is_asleep(1, now_s)
    assert not watch.is_asleep(1, now_s + 1)  # decided before
    watch.apply([received(capacity("draining", "other"), now_s)])
    assert not watch.is_asleep(1, now_s)


def test_the_parts_of_a_wake_are_those_of_its_pool_after_its_call() -> None:
    watch, before_s = PoolWatch(POOL), time.time() - 5
    watch.apply([received(credit(), before_s), received(decided(1, before_s), before_s)])
    times = watch.begin()
    begun_s = times.began_s
    watch.apply([received(credit(), before_s), received(decided(1, before_s), before_s)])
    assert (times.request_s, times.order_s, times.credit_s) == (0, 0, 0)
    records = [
        (WakeRequest("a", "other", begun_s, 0, 1), 1),
        (WakeRequest("a", POOL, begun_s, 0, 1), 2),
        (decided(0, begun_s), 3),
        (decided(1, begun_s, pool="other"), 4),
        (decided(1, begun_s), 5),
        (credit(available=False), 6),
        (credit(pool="other"), 7),
        (credit(), 8),
        (decided(2, begun_s), 9),
        (credit(), 10),
    ]
    watch.apply([received(record, begun_s + after_s) for record, after_s in records])
    found = times.request_s, times.order_s, times.credit_s
    assert [round(at_s - begun_s) for at_s in found] == [2, 5, 8]


def test_the_policy_keeps_the_warm_pool_at_zero() -> None:
    policies: Policies = read_policies(policy_text("a.b", warm_replicas=1).encode(), "wake.toml")
    policy = policies.policy_of("a.b")
    assert (policy.replicas_min, policy.warm_replicas) == (0, 1)
