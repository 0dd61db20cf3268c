"""Encodes and decodes records; the `kind` and `schema` headers name the type and its version."""

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from core.errors import RecordUnreadableError, SchemaTooNewError
from topics.records.records import KINDS, SCHEMA_VERSIONS, Record

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
