"""Goal: a replica is lost if it publishes nothing, and only if that is not the reader's fault."""

from api.online.await_reply.replica_liveness import FORGET_AFTER_S, LOST_S, ReplicaLiveness

NEVER = float("-inf")


def reading(*, until_s: float) -> ReplicaLiveness:
    """`a` publishes once, `b` every second."""
    replicas = ReplicaLiveness()
    replicas.record_capacity("a", now_s=0.0)
    for now_s in range(1, int(until_s) + 1):
        replicas.record_capacity("b", now_s=float(now_s))
    return replicas


def is_lost(replicas: ReplicaLiveness, now_s: float, unreliable_s: float = NEVER) -> bool:
    return replicas.is_lost("a", now_s=now_s, unreliable_s=unreliable_s)


def test_a_silent_replica_is_lost_until_it_publishes_again() -> None:
    replicas = reading(until_s=LOST_S + 1)
    assert not is_lost(replicas, LOST_S)
    assert is_lost(replicas, LOST_S + 1)
    assert not replicas.is_lost("b", now_s=LOST_S + 1, unreliable_s=NEVER)
    replicas.record_capacity("a", now_s=LOST_S + 1)  # it was paused
    assert not is_lost(replicas, LOST_S + 2)


def test_a_replica_that_replies_is_not_lost() -> None:
    replicas = reading(until_s=LOST_S + 1)
    replicas.record_replies("a", now_s=5.0)
    assert not is_lost(replicas, LOST_S + 1)
    assert is_lost(replicas, LOST_S + 6)


def test_a_silence_that_may_be_the_fault_of_this_process_does_not_count() -> None:
    replicas = reading(until_s=2 * LOST_S)
    assert not is_lost(replicas, 2 * LOST_S, unreliable_s=LOST_S)
    assert is_lost(replicas, 2 * LOST_S, unreliable_s=LOST_S - 1)


def test_a_gap_of_the_reader_counts_for_no_replica() -> None:
    replicas = reading(until_s=1)
    replicas.record_capacity("b", now_s=100.0)
    assert not is_lost(replicas, 100.0 + LOST_S)
    assert is_lost(replicas, 101.0 + LOST_S)


def test_an_unknown_replica_is_not_lost_and_a_silent_one_is_forgotten() -> None:
    replicas = reading(until_s=FORGET_AFTER_S)
    assert not replicas.is_lost("c", now_s=1e9, unreliable_s=NEVER)
    assert is_lost(replicas, FORGET_AFTER_S)
    replicas.record_capacity("b", now_s=FORGET_AFTER_S + 1)
    assert not is_lost(replicas, FORGET_AFTER_S + 1)
    replicas.record_replies("a", now_s=FORGET_AFTER_S + 2)
    assert not is_lost(replicas, 2 * FORGET_AFTER_S)
