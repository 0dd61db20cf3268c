"""Goal: the lowest priority comes first after any change, and removed keys are freed."""

import weakref

from hypothesis import given
from hypothesis import strategies as st

from batcher.policy.indexed_priority_queue import IndexedPriorityQueue

steps = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove"]), st.integers(0, 9), st.integers(0, 5)),
    max_size=400,
)


@given(steps)
def test_first_is_the_lowest_in_insertion_order(steps: list[tuple[str, int, int]]) -> None:
    ordering: IndexedPriorityQueue[int, float] = IndexedPriorityQueue()
    places: dict[int, float] = {}  # in the order in which they came
    for action, client, place in steps:
        if action == "put":
            ordering.set_priority(client, place)
            places[client] = place
        else:
            ordering.remove(client)
            places.pop(client, None)
        assert len(ordering) == len(places)
        assert [c in ordering for c in range(10)] == [c in places for c in range(10)]
        if places:
            first = ordering.first()
            assert first == min(places, key=places.__getitem__)
            assert ordering.priority(first) == places[first]


class Chunk:
    """Something large."""


def test_removed_keys_are_freed_and_entries_bounded() -> None:
    """As in a pool that is away: nobody asks who is first."""
    ordering: IndexedPriorityQueue[Chunk, float] = IndexedPriorityQueue()
    stays = Chunk()
    ordering.set_priority(stays, 0.0)
    left: list[weakref.ref[Chunk]] = []
    for _ in range(1000):
        chunk = Chunk()
        ordering.set_priority(chunk, 1.0)
        ordering.set_priority(stays, -1.0 * len(left))
        ordering.remove(chunk)
        left.append(weakref.ref(chunk))
        del chunk
    assert not any(ref() for ref in left)
    assert len(ordering._heap) < 20
    assert ordering.first() is stays
