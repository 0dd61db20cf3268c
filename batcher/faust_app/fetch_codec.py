"""Encodes aiokafka's fetch requests and decodes responses one partition at a time.

aiokafka walks a schema field by field in Python for every partition of every fetch. When records
arrive one by one, each needs a fetch of all assigned partitions, and the walk is paid for sixteen
of them. The layouts are those of version 11 in Kafka's protocol guide.
"""

from collections.abc import Sequence
from io import BytesIO
from struct import Struct, error
from typing import Any

from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import Array, Schema, String

_COUNT = Struct(">i")
_REQUESTED = Struct(">iiqqi")  # partition, leader epoch, offset, log start offset, bytes at most
_FETCHED = Struct(">ihqqqi")  # partition, error, three offsets, aborted transactions (-1: null)
_ABORTED = Struct(">qq")  # producer id, first offset
_RECORDS = Struct(">ii")  # preferred replica, bytes of records (-1: null)


def install() -> None:
    """Make aiokafka use these layouts for fetches; idempotent."""
    _replace_partitions(FetchRequest_v11, RequestPartitions(Schema()))
    _replace_partitions(FetchResponse_v11, ResponsePartitions(Schema()))


class RequestPartitions(Array):  # type: ignore[misc]  # aiokafka has no types
    """The partitions of one topic in a fetch request."""

    def encode(self, items: Sequence[Any] | None) -> bytes:
        """Return the same bytes as the schema's own encoder."""
        assert items is not None, "a fetch request names the partitions of each topic"
        return _COUNT.pack(len(items)) + b"".join(_REQUESTED.pack(*item) for item in items)


class ResponsePartitions(Array):  # type: ignore[misc]  # aiokafka has no types
    """The partitions of one topic in a fetch response."""

    def decode(self, data: BytesIO) -> list[Any]:
        """Return the same values as the schema's own decoder. Raises ValueError on an underrun."""
        try:
            (count,) = _COUNT.unpack(data.read(_COUNT.size))
            return [_decode_partition(data) for _ in range(count)]
        except error as short:
            raise ValueError("Buffer underrun decoding a fetch") from short


def _decode_partition(data: BytesIO) -> tuple[Any, ...]:
    *head, aborted_count = _FETCHED.unpack(data.read(_FETCHED.size))
    aborted = None
    if aborted_count >= 0:
        aborted = [_ABORTED.unpack(data.read(_ABORTED.size)) for _ in range(aborted_count)]
    replica, size = _RECORDS.unpack(data.read(_RECORDS.size))
    records = data.read(size) if size >= 0 else None
    if records is not None and len(records) != size:
        raise ValueError("Buffer underrun decoding a fetch")
    return (*head, aborted, replica, records)


def _replace_partitions(message: Any, partitions: Array) -> None:
    schema = message.SCHEMA
    position = schema.names.index("topics")
    topic_name = schema.fields[position].array_of.names[0]
    fields = [*zip(schema.names, schema.fields, strict=True)]
    fields[position] = ("topics", Array((topic_name, String("utf-8")), ("partitions", partitions)))
    message.SCHEMA = Schema(*fields)
