"""Goal: chunks and slices of copies respect their limits, and lose no item."""

from unittest.mock import patch
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from core.limits import CHUNK_ITEMS_MAX
from jobs.expansion.emission import send_items
from results.writer.copied_results import DueCopies, copy_slices
from tests.support.recording_sender import SentRecords
from topics.records import chunks as chunks_module
from topics.records.chunks import split_into_chunks
from topics.records.codec import decode, named_items
from topics.records.partitioner import shuffle_shard
from topics.records.records import Chunk, Item, JobRef

BYTES_MAX = 1000
JOB = JobRef(UUID(int=7), 20_000, UUID(int=9), "small", "1", "pool", "/v1/embeddings", "key", 0.0)


@st.composite
def some_items(draw: st.DrawFn) -> list[Item]:
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 5, 300, 999, 1000, 5000]), max_size=400))
    index, found = 0, []
    for size in sizes:
        index += draw(st.sampled_from([1, 1, 1, 1, 1, 1, 1, 3, 10_000]))
        if size > BYTES_MAX:
            found.append(Item(index, "id", b"", 1, 1, 0, size))
        else:
            found.append(Item(index, "id", b"x" * size, 1))
    return draw(st.sampled_from([found, found[::-1]]))


def test_a_model_has_one_shard_however_it_is_spelled() -> None:
    """Otherwise a tenant would fill every partition with spellings of one name."""
    digest = "a1" * 32
    names = ["small", "an-alias", *(f"small@{digest[:digits]}" for digits in range(12, 65))]
    sender = SentRecords()
    for name in names:
        send_items(sender, replace(JOB, model=name, model_version=digest), [Item(0, "id", b"", 1)])
        send_items(sender, replace(JOB, model=name), [Item(n, "id", b"", 1) for n in range(300)])
    assert {sent.partition for sent in sender.records} == set(
        shuffle_shard("pool", UUID(int=9), 16)
    )
    assert len({sent.key for sent in sender.records}) == 1


@given(items=some_items())
def test_chunks_are_bounded_and_complete(items: list[Item]) -> None:
    with patch.object(chunks_module, "CHUNK_BYTES_MAX", BYTES_MAX):
        chunks = list(split_into_chunks(items))
    assert [item for chunk in chunks for item in chunk] == items
    for chunk in chunks:
        assert 1 <= len(chunk) <= CHUNK_ITEMS_MAX
        size = sum(item.length or len(item.body) for item in chunk)
        assert size <= BYTES_MAX or len(chunk) == 1


@given(items=some_items())
def test_records_stay_in_the_shard_in_order_and_their_headers_name_the_items(
    items: list[Item],
) -> None:
    sender = SentRecords()
    assert send_items(sender, JOB, items) == len(items)
    assert {sent.topic for sent in sender.records} <= {"requests.bulk"}
    assert {sent.key for sent in sender.records} <= {b"pool\0" + UUID(int=9).bytes}
    shard = set(shuffle_shard("pool", UUID(int=9), 16))
    assert {sent.partition for sent in sender.records} <= shard
    chunks = [decode(Chunk, sent.value, sent.headers) for sent in sender.records]
    assert [item for chunk in chunks for item in chunk.items] == items
    for sent, chunk in zip(sender.records, chunks, strict=True):
        named = named_items(sent.headers)
        assert (named.job_id, named.day, named.tenant_id) == (JOB.job_id, 20_000, UUID(int=9))
        assert sorted(item.index for item in chunk.items) == list(named.indexes)


@given(items=some_items(), first=st.integers(0, 10**6))
def test_positions_grow_along_each_partition(items: list[Item], first: int) -> None:
    sender = SentRecords()
    positions = {item.index: place for place, item in enumerate(items, first)}
    send_items(sender, JOB, items, positions=positions)
    seen: dict[int | None, int] = {}
    for sent in sender.records:
        chunk = decode(Chunk, sent.value, sent.headers)
        assert chunk.position == positions[chunk.items[0].index]
        assert chunk.position >= seen.get(sent.partition, first)
        seen[sent.partition] = chunk.position


ITEMS, BYTES = 10, 1000
counts = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 1500)), max_size=20)


@given(counts=counts)
def test_every_original_is_in_one_slice_within_the_limits(counts: list[tuple[int, int]]) -> None:
    due = [DueCopies(index, *its) for index, its in enumerate(counts)]
    found = list(copy_slices(due, items_max=ITEMS, bytes_max=BYTES))
    assert sorted(o for part in found for o in part.originals) == list(range(len(due)))
    for part in found:
        its = [due[original] for original in part.originals]
        if part.is_complete:
            assert sum(one.copy_count for one in its) == part.count_max <= ITEMS
            assert sum(one.copy_count * one.size_bytes for one in its) <= BYTES
        else:
            (one,) = its
            assert 1 <= part.count_max <= ITEMS
            assert part.count_max == 1 or part.count_max * one.size_bytes <= BYTES
