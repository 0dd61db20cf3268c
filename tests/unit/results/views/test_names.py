"""Goal: names of items whose rows have none are found in files, and files are read once."""

import random

from results.views.names import ItemNames
from tests.unit.results.views.stored import JOB_ID, MemoryObjects, source

COUNT = 3000


def lines(prefix: str, count: int) -> bytes:
    return b"".join(b'{"custom_id":"%s-%d"}\n' % (prefix.encode(), n) for n in range(count))


def nearly_in_order(count: int) -> list[int]:
    """Indexes as results of a replica that runs a hundred items at once come."""
    rng = random.Random(5)
    return sorted(range(count), key=lambda index: index + rng.random() * 100)


def test_results_nearly_in_order_read_the_input_once() -> None:
    store = MemoryObjects({"input": lines("a", COUNT), "input-2": lines("b", COUNT)})
    names = ItemNames(store.store, source(store, zero_retention=True))
    for index in nearly_in_order(2 * COUNT):
        part, number = ("a", index) if index < COUNT else ("b", index - COUNT)
        assert names.at(index) == f"{part}-{number}"
    names.close()
    whole = sum(len(data) for data in store.objects.values())
    assert store.bytes_read < 2 * whole


def test_without_its_input_the_result_files_tell() -> None:
    def written(*indexes: int) -> bytes:
        return b"".join(
            b'{"id":"batch_req_%s%08x","custom_id":"c-%d"}\n' % (JOB_ID.hex.encode(), n, n)
            for n in indexes
        )

    store = MemoryObjects({"output": written(0, 2, 3), "error": written(1)})
    names = ItemNames(
        store.store,
        source(store, output="output", error="error", state="completed", zero_retention=True),
    )
    assert [names.at(index) for index in (3, 0, 1, 2, 4)] == ["c-3", "c-0", "c-1", "c-2", None]
    names.close()
