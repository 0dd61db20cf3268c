"""Goal: a search in a large file has a deadline, by index and by custom id."""

from collections.abc import Callable
from typing import cast

import pytest

from core.clock import Clock
from results.views.item_custom_ids import ItemCustomIds, SearchOverdueError, TimedReads, find_index
from results.views.result_sources import ResultSource
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


@pytest.mark.parametrize(
    "search",
    [
        lambda timed, batch: find_index(timed, batch, "a-999"),
        lambda timed, batch: ItemCustomIds(timed, batch).at(999),
    ],
    ids=["by custom id", "by index"],
)
def test_search_has_a_deadline(search: Callable[[TimedReads, ResultSource], object]) -> None:
    objects, timed = reads(5)
    with pytest.raises(SearchOverdueError):
        search(timed, source(objects))
    assert objects.bytes_read <= 6000

    objects, timed = reads(100)
    assert search(timed, source(objects)) in {999, "a-999"}
