"""Goal: a replica is lost only if others of its pool would have asked for its calls by now."""

import pytest

from api.online.await_reply.replica_liveness import FORGET_AFTER_S, LOST_S, ReplicaLiveness
from topics.records.records import Capacity

NEVER = float("-inf")


def record(
    replicas: ReplicaLiveness,
    replica_id: str,
    *at_s: float,
    pool: str = "p",
    concurrency: int = 8,
) -> None:
    for now_s in at_s:
        replicas.record(
            Capacity(replica_id, 1, pool, "interactive", [0], {}, 1.0, concurrency), now_s=now_s
        )


def is_lost(replicas: ReplicaLiveness, now_s: float, unreliable_s: float = NEVER) -> bool:
    return replicas.is_lost("a", now_s=now_s, unreliable_s=unreliable_s)


def test_a_silent_replica_is_lost_beside_a_live_one() -> None:
    replicas = ReplicaLiveness()
    record(replicas, "a", 0.0, 1.0)
    record(replicas, "b", 0.5, 1.0 + LOST_S)
    assert not is_lost(replicas, 1.0 + LOST_S)
    assert is_lost(replicas, 1.1 + LOST_S)
    record(replicas, "a", 1.2 + LOST_S)  # it was paused
    assert not is_lost(replicas, 1.3 + LOST_S)


@pytest.mark.parametrize(
    ("others", "pool"),
    [
        ((), "p"),  # a replica that starts may still ask
        ((LOST_S, 1.0 + LOST_S), "p"),  # it has just started
        ((0.0, LOST_S / 4), "p"),  # lost, too
        ((0.0, 1.0 + LOST_S), "other"),
    ],
)
def test_without_another_live_replica_of_its_pool_its_calls_wait(
    others: tuple[float, ...], pool: str
) -> None:
    replicas = ReplicaLiveness()
    record(replicas, "a", 0.0)
    record(replicas, "b", *others, pool=pool)
    assert not is_lost(replicas, 5.0 + LOST_S)


def test_a_silence_that_may_be_the_fault_of_this_process_does_not_count() -> None:
    replicas = ReplicaLiveness()
    record(replicas, "a", 0.0)
    record(replicas, "b", 0.0, 2 * LOST_S)
    assert not is_lost(replicas, 2 * LOST_S, unreliable_s=LOST_S)
    assert is_lost(replicas, 2 * LOST_S, unreliable_s=LOST_S - 1)


def test_a_replica_that_ended_in_order_has_lost_no_calls() -> None:
    replicas = ReplicaLiveness()
    record(replicas, "a", 0.0)
    record(replicas, "b", 0.0, 2 * LOST_S)
    record(replicas, "a", 1.0, concurrency=0)
    assert not is_lost(replicas, 2 * LOST_S)


def test_replicas_that_were_silent_for_long_are_forgotten() -> None:
    replicas = ReplicaLiveness()
    record(replicas, "a", 0.0)
    record(replicas, "b", 0.0, FORGET_AFTER_S)
    replicas.forget_silent_replicas(now_s=FORGET_AFTER_S)
    assert is_lost(replicas, FORGET_AFTER_S)
    replicas.forget_silent_replicas(now_s=FORGET_AFTER_S + 1)
    assert not is_lost(replicas, FORGET_AFTER_S + 1)
