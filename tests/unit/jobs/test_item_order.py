"""Goal: an order is found where it saves prompt tokens, in bounded memory, and stored whole."""

import random
from itertools import pairwise
from typing import Any
from unittest.mock import patch
from uuid import UUID

import numpy as np
import pytest

from core.limits import CHUNK_BYTES_MAX
from core.object_names import lines_key
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.emission import ItemReader
from jobs.expansion.job_loads import OpenJob
from jobs.input.input_files import InputFile, InputFiles
from jobs.input.line_reader import InputChangedError, Line, input_lines
from jobs.ordering import ordered_files, prompt_prefixes
from jobs.ordering.item_order import ITEMS_MIN, FileItems, ItemOrder, find_order
from jobs.ordering.ordered_files import (
    OrderPositions,
    job_positions,
    new_order_key,
    parse_ordered_line,
    restore_lines,
    write_order,
)
from jobs.ordering.prompt_prefixes import (
    PREFIX_CHARS,
    FirstPrefixes,
    PromptPrefixes,
    predicted_output,
    prompt_start,
)
from jobs.recovery import re_emit
from jobs.recovery.re_emit import emitted_ranges
from storage.objects.errors import ObjectNotFoundError
from tests.support.memory_objects import MemoryStore
from topics.records.records import Item, JobRef

JOB = JobRef(UUID(int=7), 20_000, UUID(int=9), "small", "1", "pool", "/v1/embeddings", "in", 0.0)


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": one} for one in contents]} | fields


def found_order(bodies: list[dict[str, Any]]) -> ItemOrder | None:
    prefixes, first = PromptPrefixes(), FirstPrefixes()
    for body in bodies:
        prefixes.add(len(repr(body)), body)
        first.add(len(repr(body)), body)
    order = prefixes.find_order()
    assert order is None or first.may_share()  # what may not share has no order
    return order


def bodies_of(count: int, prefix_count: int, seed: int = 1, **fields: Any) -> list[dict[str, Any]]:
    chance = random.Random(seed)
    prefixes = [f"{n:08}" * 500 for n in range(prefix_count)]
    return [chat(chance.choice(prefixes), f"question {n}", **fields) for n in range(count)]


def test_items_with_a_prefix_are_neighbours_and_have_a_group() -> None:
    bodies = bodies_of(1000, 20)
    order = found_order(bodies)
    assert order is not None
    assert set(order.groups.tolist()) == set(range(1, 21))
    assert all(
        len({bodies[n]["messages"][0]["content"] for n in np.flatnonzero(order.groups == group)})
        == 1
        for group in range(1, 21)
    )
    # What a neighbour has: 512 tokens of the 500 shared, for all but the first and in the file.
    in_file = sum(a["messages"][0] == b["messages"][0] for a, b in pairwise(bodies))
    assert order.saved_tokens == (1000 - 20 - in_file) * 512


def test_decode_heavy_groups_are_first() -> None:
    bodies = [
        chat(f"{n % 3}" * 4000, f"question {n}", max_tokens=(10, 1000, 100)[n % 3])
        for n in range(300)
    ]
    order = found_order(bodies)
    assert order is not None
    assert [n % 3 for n in order.sequence().tolist()] == [1] * 100 + [2] * 100 + [0] * 100


def test_a_few_longer_prefixes_do_not_divide_a_group() -> None:
    bodies = bodies_of(400, 4)
    for n in range(0, 40, 2):  # pairs that share 2,000 characters more
        for one in (n, n + 1):
            first = bodies[n]["messages"][0]["content"]
            bodies[one] = chat(first, f"{n:08}" * 600)
    order = found_order(bodies)
    assert order is not None
    assert set(order.groups.tolist()) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    "bodies",
    [
        bodies_of(150, 20),
        bodies_of(1000, 1),
        [chat(f"question {n}") for n in range(1000)],
        [chat(f"{n}" * 4000) for n in range(300)],
        sorted(bodies_of(1000, 20), key=repr),
        [chat("y" * 300, f"{n:08}" * 1000) for n in range(1000)],
        [{"messages": 5, "max_tokens": "many", "n": [1]} for _ in range(300)],
    ],
    ids=["small", "one prefix", "short", "no prefix", "sorted", "little gain", "strange"],
)
def test_no_order_where_it_saves_nothing(bodies: list[dict[str, Any]]) -> None:
    assert found_order(bodies) is None


def test_the_same_file_has_the_same_order() -> None:
    one, other = (found_order(bodies_of(1000, 20)) for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.positions.tolist() == other.positions.tolist()


@pytest.mark.parametrize(
    ("prefix_count", "may_share"), [(3, True), (60, True), (5_000, False), (10_000_000, False)]
)
def test_the_shortest_prefixes_bound_what_an_order_saves(
    prefix_count: int, may_share: bool
) -> None:
    chance = random.Random(7)
    first = FirstPrefixes()
    for number in range(1_000):
        body = chat(f"{chance.randrange(prefix_count):08}" * 100, f"question {number}")
        first.add(900, body)
    assert first.may_share() is may_share


def test_few_items_long_files_and_short_prompts_may_not_share() -> None:
    few, short, long = FirstPrefixes(), FirstPrefixes(), FirstPrefixes()
    for _ in range(ITEMS_MIN - 1):
        few.add(900, chat("x" * 800))
    for _ in range(1_000):
        short.add(900, chat("x" * 100))
        long.add(2**31, chat("x" * 800))
    assert not few.may_share()
    assert not short.may_share()
    assert not long.may_share()
    assert not FirstPrefixes().may_share()


@pytest.mark.parametrize(
    "body",
    [
        chat("a" * 300, "b"),
        chat("a" * 10, "b" * 300),
        {"prompt": "p" * 400},
        {"messages": [{"role": "user", "content": "c" * 300}], "tools": [{"name": "t" * 300}]},
        {"messages": [{"role": "user", "content": [{"text": "c" * 300}]}]},
        {"messages": "not a list"},
    ],
)
def test_the_shortest_prefix_is_the_start_of_the_prompt(body: dict[str, Any]) -> None:
    assert prompt_prefixes._first_text(body) == prompt_start(body)[: PREFIX_CHARS[0]]


def test_memory_is_36_bytes_an_item_and_none_above_the_limit() -> None:
    prefixes = PromptPrefixes()
    with patch("jobs.ordering.prompt_prefixes.ITEMS_MAX", 500):
        for body in bodies_of(600, 3):
            prefixes.add(5000, body)
    arrays = (prefixes._hashes, prefixes._sizes, prefixes._prompts, prefixes._outputs)
    assert sum(len(one) * one.itemsize for one in arrays) == 500 * 36
    assert prefixes.find_order() is None


@pytest.mark.parametrize(
    ("body", "start"),
    [
        (chat("a", "b"), "\nuser:a\nuser:b"),
        (chat("a", tools=[1]), "[1]\nuser:a"),
        (chat([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), "\nuser:ab"),
        (chat([{"type": "text", "text": "a"}, {"image_url": "u"}], "c"), "\nuser:a"),
        ({"messages": [{"role": "user", "content": "a"}, 7]}, "\nuser:a"),
        ({"prompt": "a"}, "a"),
        ({"prompt": ["a", "b"]}, ""),
        ({}, ""),
    ],
)
def test_the_start_is_what_the_engine_sees(body: dict[str, Any], start: str) -> None:
    assert prompt_start(body) == start


def test_tools_are_read_no_further_than_they_are_compared() -> None:
    read: list[object] = []

    class Tool(dict[str, str]):
        def __repr__(self) -> str:
            read.append(self)
            return "{%s}" % ("x" * 98)

    tools = [Tool() for _ in range(2000)]
    assert prompt_start(chat("a", tools=tools[:3])) == f"{tools[:3]}\nuser:a"
    read.clear()
    assert len(prompt_start(chat("a", tools=tools))) >= PREFIX_CHARS[-1]
    assert len(read) == -(-PREFIX_CHARS[-1] // 100)


@pytest.mark.parametrize(("file_bytes", "is_ordered"), [(2**30, True), (2**30 + 600, False)])
def test_a_file_above_a_gibibyte_keeps_its_order(file_bytes: int, is_ordered: bool) -> None:
    count = 1024
    prefixes = np.arange(count, dtype=np.uint32).reshape(-1, 1) % 7 + 1
    tokens = np.full(count, 100, dtype=np.uint32)
    sizes = np.full(count, file_bytes // count, dtype=np.uint32)
    sizes[0] += file_bytes % count
    order = find_order(FileItems(prefixes, tokens, tokens, sizes), [64])
    assert (order is not None) == is_ordered


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({}, 256),
        ({"max_tokens": 100}, 50),
        ({"max_tokens": 100, "max_completion_tokens": 40, "n": 3}, 60),
        ({"max_tokens": True, "n": -1}, 256),
        ({"max_tokens": 10**30, "n": 10**30}, 10_000_000),
    ],
)
def test_predictions_follow_the_limit(body: dict[str, Any], tokens: int) -> None:
    assert predicted_output(body) == tokens


def stored(order: ItemOrder, lines: list[bytes], read_bytes: int) -> tuple[MemoryStore, int]:
    """Store an order; return the store, and how often the file was read."""
    objects, reads = MemoryStore(), 0

    def read() -> list[Line]:
        nonlocal reads
        reads += 1
        return list(input_lines([b"\n\n".join(lines)], line_bytes_max=10**6))

    with patch.object(ordered_files, "READ_BYTES", read_bytes):
        write_order(objects, "orders/a/0-1", order, read)
    return objects, reads


def an_order(lines: list[bytes], seed: int = 1) -> ItemOrder:
    positions = np.arange(len(lines), dtype=np.int32)
    random.Random(seed).shuffle(positions)  # type: ignore[arg-type]
    groups = (positions // 3).astype(np.int32)
    return ItemOrder(positions, groups, np.array([*map(len, lines)], dtype=np.uint32), 1)


@pytest.mark.parametrize("read_bytes", [1, 200, 10**6])
def test_a_stored_order_has_each_line_once_with_its_place(read_bytes: int) -> None:
    lines = [b"{%s}" % (b"%d " % n * (1 + n % 7)) for n in range(100)]
    order = an_order(lines)
    objects, reads = stored(order, lines, read_bytes)
    entries = objects.objects[lines_key("orders/a/0-1")].splitlines()
    found = [parse_ordered_line(entry) for entry in entries]
    assert [one.position for one in found] == list(range(100))
    assert [one.item_index for one in found] == order.sequence().tolist()
    assert [one.group for one in found] == order.groups[order.sequence()].tolist()
    assert [one.line for one in found] == [lines[n] for n in order.sequence().tolist()]
    content = b"\n\n".join(lines)
    assert all(content[one.offset :].startswith(one.line) for one in found)
    assert {1: 100, 200: reads, 10**6: 1}[read_bytes] == reads
    assert reads <= 100

    files = InputFiles("in", [InputFile("more", 100)], first_order_key="orders/a/0-1")
    assert job_positions(objects, files, range(90, 110)) == [
        *order.positions[90:].tolist(),
        *range(100, 110),
    ]
    assert job_positions(objects, files, range(100, 103)) is None
    groups = OrderPositions(objects, "orders/a/0-1")
    with patch.object(ordered_files, "_CACHED", 7):
        assert [groups.group_of(n) for n in range(100)] == order.groups.tolist()


@pytest.mark.parametrize("read_bytes", [200, 10**6])
def test_lines_that_went_are_written_again_byte_for_byte(read_bytes: int) -> None:
    lines = [b"{%s}" % (b"%d " % n * (1 + n % 7)) for n in range(100)]
    objects, _ = stored(an_order(lines), lines, read_bytes)
    key = lines_key("orders/a/0-1")
    before = objects.objects.pop(key)
    content = b"\n\n".join(lines)

    def restore(content: bytes) -> None:
        with patch.object(ordered_files, "READ_BYTES", read_bytes):
            restore_lines(
                objects, "orders/a/0-1", lambda: input_lines([content], line_bytes_max=10**6)
            )

    for other in (content + b"\n{}", content[: len(content) // 2]):
        with pytest.raises(InputChangedError):
            restore(other)
        assert key not in objects.objects
    restore(content)
    assert objects.objects[key] == before
    objects.objects.clear()
    with pytest.raises(ObjectNotFoundError):
        restore(content)


def test_a_file_that_is_shorter_than_its_order_is_refused() -> None:
    lines = [b"{%d}" % n for n in range(10)]
    with pytest.raises(InputChangedError):
        stored(an_order(lines), lines[:9], 10**6)


@pytest.mark.parametrize("entry", [None, b"", b"{}", b"1 2 3", b"1 2 x 4 {}", b"{} 1 2 3 4"])
def test_an_entry_that_no_order_has_is_refused(entry: bytes | None) -> None:
    with pytest.raises(InputChangedError):
        parse_ordered_line(entry)


def test_each_lease_writes_a_key_of_its_own() -> None:
    job_id = UUID(int=7)
    keys = {new_order_key(job_id, number, epoch) for number in (0, 1) for epoch in (3, 4)}
    assert len(keys) == 4
    assert all(key.startswith(f"orders/{job_id.hex}/") for key in keys)


def expanded(objects: MemoryStore, at_once: int) -> tuple[list[Item], ExpansionCursor]:
    """Read all items of an order, with a new reader for each read."""
    items: list[Item] = []
    cursor = ExpansionCursor(0, 0, 40)
    while True:
        reader = ItemReader(objects, JOB, cursor, "orders/a/0-1", 40)
        found = reader.read_items(at_once, 10**9)
        cursor = reader.cursor
        reader.close()
        if not found:
            return items, cursor
        items += found


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_an_order_is_read_from_any_cursor(at_once: int) -> None:
    lines = [b'{"custom_id":"id-%d","body":{"input":"%d"}}' % (n, n) for n in range(50)]
    lines[3] = lines[3].replace(b'"3"', b'"%s"' % (b"x" * CHUNK_BYTES_MAX))
    order = an_order(lines)
    objects, _ = stored(order, lines, 10**6)
    items, cursor = expanded(objects, at_once)
    assert [item.index - 40 for item in items] == order.sequence().tolist()
    assert all(item.custom_id == f"id-{item.index - 40}" for item in items)
    assert [item.prefix_group for item in items] == order.groups[order.sequence()].tolist()
    assert cursor.item_index == 90
    content = b"\n\n".join(lines)
    (large,) = [item for item in items if item.length]
    assert content[large.offset : large.offset + large.length] == lines[3]


def test_a_cursor_of_another_order_is_refused() -> None:
    lines = [b'{"custom_id":"id-%d","body":{"input":"%d"}}' % (n, n) for n in range(50)]
    objects, _ = stored(an_order(lines), lines, 10**6)
    for cursor in (ExpansionCursor(0, 0, 41), ExpansionCursor(7, 0, 40)):
        with pytest.raises(InputChangedError):
            ItemReader(objects, JOB, cursor, "orders/a/0-1", 40).read_items(1, 10**9)


@pytest.mark.parametrize(
    ("emitted", "expected"),
    [
        (0, []),
        (5, [range(10)]),  # any of the ordered file
        (10, [range(10)]),
        (13, [range(10), range(10, 13)]),
        (20, [range(10), range(10, 20)]),
        (21, [range(10), range(10, 20), range(20, 30)]),
        (30, [range(10), range(10, 20), range(20, 30)]),
    ],
)
def test_emitted_items_are_below_the_cursor_or_in_an_ordered_file(
    emitted: int, expected: list[range]
) -> None:
    more = [InputFile("b", 10), InputFile("c", 20, 0, "orders/a/2-1")]
    files = InputFiles("a", more, first_order_key="orders/a/0-1")
    job = OpenJob(JOB, 30, ExpansionCursor(item_index=emitted), files)
    assert [*emitted_ranges(job)] == expected
    with patch.object(re_emit, "RANGE_ITEMS", 4):
        parts = [*emitted_ranges(job)]
    assert max(map(len, parts), default=0) <= 4
    assert [n for part in parts for n in part] == [n for part in expected for n in part]


def test_items_of_different_models_are_in_different_prefix_groups() -> None:
    prefixes = PromptPrefixes()
    body = {"messages": [{"role": "user", "content": "x" * 2000}]}
    for number in range(400):
        prefixes.add(2100, body, salt=number % 2 * 12345)

    order = prefixes.find_order()

    assert order is not None
    models = [{*order.groups[start::2].tolist()} for start in (0, 1)]
    assert [len(groups) for groups in models] == [1, 1]
    assert models[0] != models[1]
