"""Goal: encoded records can be decoded; errors never quote a record's content."""

from typing import cast
from uuid import UUID

import pytest

from core.errors import RecordUnreadableError, SchemaTooNewError
from core.outcomes import Outcome
from tests.unit.batcher.builders import job_ref
from topics.records.codec import (
    Headers,
    NamedItems,
    chunk_headers,
    decode,
    encode,
    kind_headers,
    kind_of,
    named_items,
)
from topics.records.partitioner import request_partition, shuffle_shard
from topics.records.records import Chunk, Item, ItemOutcome, Outcomes

JOB = job_ref(7)
CHUNK = Chunk(job=JOB, items=[Item(3, "a", b'{"x":1}', 5), Item(4, "b", b"", 9, 2, 100, 50)])


def test_records_survive_the_log() -> None:
    assert decode(Chunk, encode(CHUNK), chunk_headers(CHUNK, "bulk")) == CHUNK
    outcomes = Outcomes(JOB, [ItemOutcome(1, None, Outcome.FAILED, 500, b"{}")])
    assert decode(Outcomes, encode(outcomes), kind_headers(Outcomes)) == outcomes


def test_headers_alone_name_the_items() -> None:
    found = named_items(chunk_headers(CHUNK, "bulk"))
    assert found == NamedItems(JOB.job_id, JOB.day, JOB.tenant_id, (3, 4))


@pytest.mark.parametrize(
    ("indexes", "header"),
    [([7], b"7-7"), ([3, 4, 5], b"3-5"), ([22, 17, 3, 0, 2, 21, 1], b"0-3,17-17,21-22")],
)
def test_headers_name_indexes_in_any_order_as_ranges(indexes: list[int], header: bytes) -> None:
    chunk = Chunk(JOB, [Item(index, "a", b"{}", 1) for index in indexes])
    headers = chunk_headers(chunk, "bulk")
    assert dict(headers)["items"] == header
    assert named_items(headers).indexes == tuple(sorted(indexes))


@pytest.mark.parametrize(("kind", "schema"), [(b"chunk", b"2"), (b"novelty", b"1")])
def test_a_newer_schema_or_kind_stops_the_reader(kind: bytes, schema: bytes) -> None:
    with pytest.raises(SchemaTooNewError):
        decode(Chunk, encode(CHUNK), [("kind", kind), ("schema", schema)])


@pytest.mark.parametrize("value", [None, b"", b"\xc1", b"secret prompt", encode(CHUNK)[:-3]])
def test_an_unreadable_value_is_refused_and_never_quoted(value: bytes | None) -> None:
    with pytest.raises(RecordUnreadableError) as refused:
        decode(Chunk, value, kind_headers(Chunk))
    assert "secret" not in repr(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize("name", ["kind", "schema", "items", "job", "day", "tenant"])
def test_a_header_without_a_value_is_refused(name: str) -> None:
    """Tools that copy records write such headers."""
    headers = [(n, None if n == name else v) for n, v in chunk_headers(CHUNK, "bulk")]
    read = kind_of if name in {"kind", "schema"} else named_items
    for given in (cast(Headers, headers), None):
        with pytest.raises(RecordUnreadableError):
            read(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("day", b"2147483648"),
        ("day", b"-1"),
        ("day", b"9" * 5000),
        ("items", b"9" * 30 + b"-" + b"9" * 30),
        ("items", b"2147483648-2147483648"),
        ("items", b"0-100"),  # more than a chunk holds
        ("items", b"0-59,60-100"),
        ("items", b"5-3"),
        ("items", b"0-3,,7-7"),
        ("items", b"0-3-7"),
    ],
)
def test_an_impossible_header_is_refused(name: str, value: bytes) -> None:
    headers = [(n, value if n == name else v) for n, v in chunk_headers(CHUNK, "bulk")]
    with pytest.raises(RecordUnreadableError):
        named_items(headers)


def test_a_tenant_stays_inside_its_shard() -> None:
    shard = shuffle_shard("m", UUID(int=1), 16)
    used = {request_partition("m", UUID(int=1), n, 16) for n in range(50)}
    assert used == set(shard)
    assert len(shard) == 2


def test_tenants_hardly_ever_share_a_whole_shard() -> None:
    shards = [frozenset(shuffle_shard("m", UUID(int=n), 16)) for n in range(1000)]
    same = sum(shards[n] == shards[n + 1] for n in range(999)) / 999
    assert same < 2 / 120  # 120 pairs of 16: one in 120 by chance
