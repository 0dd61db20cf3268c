"""Encodes and decodes records and their headers.

The `kind` and `schema` headers name the type and its version. A reader can route a chunk, or fail
its items, by its headers without decoding the value.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from core.errors import RecordUnreadableError, SchemaTooNewError
from core.limits import CHUNK_ITEMS_MAX, NUMBER_MAX
from topics.records.kinds import KINDS, SCHEMA_VERSIONS
from topics.records.records import Chunk, JobRef, Record

Headers = list[tuple[str, bytes]]
R = TypeVar("R", bound=Record)

_ENCODER = msgspec.msgpack.Encoder()
_DECODERS: dict[type[Record], msgspec.msgpack.Decoder[Any]] = {
    record: msgspec.msgpack.Decoder(record) for record in KINDS
}


def encode(record: Record) -> bytes:
    """Return the encoded value of `record`."""
    return _ENCODER.encode(record)


def kind_headers(record: type[Record]) -> Headers:
    """Return the two headers that every record carries."""
    kind = KINDS[record]
    return [("kind", kind.encode()), ("schema", b"%d" % SCHEMA_VERSIONS[kind])]


def kind_of(headers: Iterable[tuple[str, bytes]] | None) -> str:
    """Return the kind that a record's headers name.

    Raises SchemaTooNewError for a newer version, RecordUnreadableError without valid headers.
    """
    found = dict(headers or ())
    try:
        kind, version = found["kind"].decode(), int(found["schema"])
    except (KeyError, ValueError, AttributeError, TypeError):  # a header may be null
        raise RecordUnreadableError("the record has no readable kind and schema headers") from None
    if kind not in SCHEMA_VERSIONS or version > SCHEMA_VERSIONS[kind]:
        raise SchemaTooNewError(kind=kind, version=version)
    return kind


def decode(record: type[R], value: bytes | None, headers: Iterable[tuple[str, bytes]] | None) -> R:
    """Decode a record and check its headers. Raises SchemaTooNewError, RecordUnreadableError."""
    kind = kind_of(headers)
    if kind != KINDS[record]:
        raise RecordUnreadableError(f"expected {KINDS[record]}, found {kind}")
    return decode_value(record, value)


def decode_value(record: type[R], value: bytes | None) -> R:
    """Decode a record whose headers were checked before. Raises RecordUnreadableError."""
    try:
        decoded: R = _DECODERS[record].decode(value or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # From None: the cause may quote the value, and values hold prompts.
        raise RecordUnreadableError(f"the {KINDS[record]} cannot be decoded") from None
    return decoded


@dataclass(frozen=True, slots=True)
class NamedItems:
    """The items that a chunk's headers name: enough to fail them when the value is unreadable."""

    job_id: UUID
    day: int
    tenant_id: UUID
    indexes: tuple[int, ...]  # at most those of one chunk


def chunk_headers(chunk: Chunk, job_class: str) -> Headers:
    """Return the headers of a chunk record of `requests.<job_class>`."""
    job, items = chunk.job, chunk.items
    tokens = sum(item.token_count for item in items)
    return [
        *kind_headers(Chunk),
        *job_headers(job),
        ("items", _encode_indexes([item.index for item in items])),
        ("class", job_class.encode()),
        ("deadline", b"%.3f" % job.deadline_s),
        ("tokens", b"%d" % tokens),
        ("attempt", b"%d" % max(item.attempt for item in items)),
    ]


def job_headers(job: JobRef) -> Headers:
    """Return the headers that name a job and its tenant and model."""
    headers: Headers = [
        ("job", job.job_id.hex.encode()),
        ("day", b"%d" % job.day),
        ("tenant", job.tenant_id.hex.encode()),
        ("model", f"{job.model}@{job.model_version}".encode()),
    ]
    if job.traceparent:
        headers.append(("traceparent", job.traceparent.encode()))
    return headers


def named_items(headers: Iterable[tuple[str, bytes]] | None) -> NamedItems:
    """Return the items that a chunk's headers name. Raises RecordUnreadableError."""
    found = dict(headers or ())
    try:
        named = NamedItems(
            job_id=UUID(found["job"].decode()),
            day=int(found["day"]),
            tenant_id=UUID(found["tenant"].decode()),
            indexes=_decode_indexes(found["items"]),
        )
    except (KeyError, ValueError, AttributeError, TypeError):  # a header may be null
        raise RecordUnreadableError("the record's headers do not name its items") from None
    if not all(0 <= n <= NUMBER_MAX for n in (named.day, *named.indexes)):
        raise RecordUnreadableError("the record's headers name an impossible day or item")
    return named


def index_ranges(indexes: Collection[int]) -> list[tuple[int, int]]:
    """Return the first and last index of each range of consecutive indexes, rising."""
    ranges: list[tuple[int, int]] = []
    for index in sorted(indexes):
        if ranges and index <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], index)
        else:
            ranges.append((index, index))
    return ranges


def _encode_indexes(indexes: Collection[int]) -> bytes:
    """Return indexes as ranges, such as `0-3,17-17`.

    Releases before ADR 93 write and read a single range.
    """
    return b",".join(b"%d-%d" % bounds for bounds in index_ranges(indexes))


def _decode_indexes(text: bytes) -> tuple[int, ...]:
    """Return the indexes in a header. Raises ValueError for more than a chunk may hold.

    So many indexes come from a wide range of a release that wrote no gaps: those between may be in
    other chunks. The bound also limits what a header can make its reader allocate.
    """
    indexes: list[int] = []
    for part in text.split(b","):
        first, last = map(int, part.split(b"-"))
        if not 0 <= last - first < CHUNK_ITEMS_MAX - len(indexes):
            raise ValueError("not the items of one chunk")
        indexes.extend(range(first, last + 1))
    return tuple(indexes)
