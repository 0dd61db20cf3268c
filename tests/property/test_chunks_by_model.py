"""Goal: dividing items by model loses none, keeps their order, and holds few bytes."""

import json
from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.ids import new_uuid
from core.limits import CHUNK_BYTES_MAX, CHUNK_ITEMS_MAX
from jobs.expansion.emission import parse_item
from jobs.expansion.item_models import BUFFERED_BYTES_MAX, ItemModels, split_by_model
from jobs.input.line_reader import InputChangedError
from topics.records.records import Item, JobRef

SIZES = st.sampled_from([0, 10, CHUNK_BYTES_MAX // 2, CHUNK_BYTES_MAX, 3 * CHUNK_BYTES_MAX])
NAMES = st.sampled_from(["base", "law", "med", "prod"])
ITEMS = st.lists(st.tuples(NAMES, SIZES), max_size=200)


def item(index: int, size: int) -> Item:
    """An item of a size; large ones travel by reference."""
    if size > CHUNK_BYTES_MAX:
        return Item(index, "", b"", 1, length=size)
    return Item(index, "", bytes(size), 1)


@given(ITEMS)
def test_union_of_the_chunks_is_the_items_in_order_of_each_model(
    drawn: list[tuple[str, int]],
) -> None:
    items = [item(index, size) for index, (_, size) in enumerate(drawn)]

    chunks = list(split_by_model(items, lambda one: drawn[one.index][0]))

    expected: defaultdict[str, list[int]] = defaultdict(list)
    for index, (name, _) in enumerate(drawn):
        expected[name].append(index)
    found: defaultdict[str, list[int]] = defaultdict(list)
    for name, chunk in chunks:
        found[name] += [one.index for one in chunk]
        assert 0 < len(chunk) <= CHUNK_ITEMS_MAX
        sizes = [one.length or len(one.body) for one in chunk]
        assert len(chunk) == 1 or sum(sizes) <= CHUNK_BYTES_MAX
    assert found == expected


def test_chunks_of_many_models_hold_a_bounded_number_of_bytes() -> None:
    size, held, peak = CHUNK_BYTES_MAX // 2, 0, 0

    def reading() -> Iterator[Item]:
        nonlocal held, peak
        for index in range(300):
            held += size
            peak = max(peak, held)
            yield item(index, size)

    for _, chunk in split_by_model(reading(), lambda one: f"m{one.index % 100}"):
        held -= sum(len(one.body) for one in chunk)

    assert held == 0
    assert peak <= BUFFERED_BYTES_MAX + 2 * size


JOB = JobRef(new_uuid(), 0, new_uuid(), "base", "1", "pool", "/v1/embeddings", "key", 0.0)
PINS = {
    "base": {"version": "1", "base_version": ""},
    "law": {"version": "2", "base_version": "1"},
}


def line(index: int, model: object) -> bytes:
    body = {"model": model, "input": "x"}
    return json.dumps({"custom_id": f"{index}", "body": body}).encode()


@given(st.lists(st.sampled_from(["base", "law"]), max_size=300))
def test_each_chunk_has_the_reference_of_the_model_in_its_lines(names: list[str]) -> None:
    models = ItemModels(PINS)
    parse = models.noting(parse_item)
    items = [parse(n, 0, line(n, name), JOB.endpoint) for n, name in enumerate(names)]

    seen = []
    for ref, chunk in models.chunks(JOB, items):
        pin = PINS[ref.model]
        assert (ref.model_version, ref.base_version) == (pin["version"], pin["base_version"])
        assert {names[one.index] for one in chunk} == {ref.model}
        assert (ref.job_id, ref.pool, ref.input_key) == (JOB.job_id, JOB.pool, JOB.input_key)
        seen += [one.index for one in chunk]
    assert sorted(seen) == list(range(len(names)))


@pytest.mark.parametrize("model", ["absent", 5, None])
def test_line_with_a_model_that_was_not_pinned_is_a_changed_file(model: object) -> None:
    with pytest.raises(InputChangedError):
        ItemModels(PINS).noting(parse_item)(0, 0, line(0, model), JOB.endpoint)


def test_last_value_of_a_repeated_key_is_the_model() -> None:
    models = ItemModels(PINS)
    twice = b'{"custom_id":"a","body":{"model":"base","model":"law"}}'
    found = models.noting(parse_item)(0, 0, twice, JOB.endpoint)
    assert [ref.model for ref, _ in models.chunks(JOB, [found])] == ["law"]
