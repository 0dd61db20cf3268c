"""Goal: a search in a large file has a deadline, by index and by custom id."""

from typing import cast

import pytest

from core.clock import Clock
from results.views.item_custom_ids import ItemCustomIds, SearchOverdueError, TimedReads, find_index
from tests.unit.results.views.stored import MemoryObjects, source

LINES = b"".join(b'{"custom_id":"a-%d"}\n' % n for n in range(1000))


class Ticking:
    """A clock that advances by a second at each reading."""

    now = 0.0

    def monotonic_s(self) -> float:
        self.now += 1
        return self.now


def reads(time_s_max: float) -> tuple[MemoryObjects, TimedReads]:
    objects = MemoryObjects({"input": LINES}, block_bytes=1000)
    return objects, TimedReads(objects.store, cast(Clock, Ticking()), time_s_max=time_s_max)


def test_search_by_custom_id_has_a_deadline() -> None:
    objects, timed = reads(5)
    with pytest.raises(SearchOverdueError):
        find_index(timed, source(objects), "a-999")
    assert objects.bytes_read <= 6000


def test_custom_id_by_index_has_a_deadline() -> None:
    objects, timed = reads(5)
    with pytest.raises(SearchOverdueError):
        ItemCustomIds(timed, source(objects)).at(999)
    assert objects.bytes_read <= 6000


def test_search_within_its_deadline_succeeds() -> None:
    objects, timed = reads(100)
    assert find_index(timed, source(objects), "a-999") == 999
    objects, timed = reads(100)
    assert ItemCustomIds(timed, source(objects)).at(999) == "a-999"
