"""Goal: a committed offset never passes a record whose effect is not durable."""

from hypothesis import given
from hypothesis import strategies as st

from topics.clients.offset_tracker import OffsetTracker

P = ("batches.p.bulk", 0)


def test_only_the_finished_prefix_is_committable() -> None:
    tracker = OffsetTracker()
    for offset in (3, 4, 7):  # compaction left a gap
        tracker.track(P, offset)
    tracker.mark_finished(P, 4)
    assert tracker.committable() == {}
    tracker.mark_finished(P, 3)
    assert tracker.committable() == {P: 5}
    assert tracker.committable() == {P: 5}  # until the broker has taken it
    tracker.mark_committed({P: 5})
    assert tracker.committable() == {}
    tracker.mark_finished(P, 7)
    assert tracker.committable() == {P: 8}


def test_a_dropped_partition_is_never_committed() -> None:
    tracker = OffsetTracker()
    tracker.track(P, 1)
    tracker.drop([P])
    tracker.mark_finished(P, 1)
    assert tracker.committable() == {}


@given(st.permutations(range(12)), st.integers(0, 12))
def test_any_order_commits_exactly_the_prefix(order: list[int], finished_count: int) -> None:
    tracker = OffsetTracker()
    for offset in range(12):
        tracker.track(P, offset)
    for offset in order[:finished_count]:
        tracker.mark_finished(P, offset)
    finished = set(order[:finished_count])
    prefix = next(n for n in range(13) if n not in finished)
    assert tracker.committable() == ({P: prefix} if prefix else {})
    assert tracker.in_flight(P) == 12 - prefix
