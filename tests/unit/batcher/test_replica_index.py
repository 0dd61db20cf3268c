"""Goal: a replica that becomes usable is found soon, while others have credit throughout."""

from batcher.policy.replica_index import RECHECK_S, ReplicaIndex

_STEP_S = RECHECK_S / 5


def index_of(*replica_ids: str) -> ReplicaIndex:
    """Return an index that prefers earlier replicas."""
    ranks = {name: (False, False, n) for n, name in enumerate(replica_ids)}
    index = ReplicaIndex(lambda replica_id, _: ranks[replica_id])
    for replica_id in replica_ids:
        index.mark_changed(replica_id)
    return index


def test_a_replica_that_becomes_usable_is_found_while_others_stay_unusable() -> None:
    index = index_of("a", "b", "c", "last")
    usable = {"last"}
    now_s = 100.0
    for _ in range(20):
        assert index.best(usable.__contains__, now_s=now_s) == "last"
        now_s += _STEP_S
        index.mark_changed("c")  # a grant arrives
    usable.add("a")
    found = [index.best(usable.__contains__, now_s=now_s + n * _STEP_S) for n in range(1, 7)]
    assert found[-1] == "a"


def test_unusable_replicas_that_change_are_not_collected_again_and_again() -> None:
    index = index_of("a", "b", "last")
    for n in range(1000):
        assert index.best({"last"}.__contains__, now_s=100.0 + n * 0.001) == "last"
        index.mark_changed("a")
        index.mark_changed("b")
    assert len(index._unusable) + len(index._heap) < 100
