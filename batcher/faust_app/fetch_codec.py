"""Fetch requests and answers of aiokafka, a partition at a time instead of a field at a time.

aiokafka walks a schema of fields in Python for every partition of every fetch. While records come
one by one, each is a fetch of all partitions that the batcher owns, and the walk is paid for
sixteen of them. The layouts are those of version 11 in Kafka's protocol guide.
"""

from collections.abc import Sequence
from io import BytesIO
from struct import Struct, error
from typing import Any

from aiokafka.protocol.fetch import FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import Array, Schema, String

_COUNT = Struct(">i")
_ASKED = Struct(">iiqqi")  # partition, leader epoch, offset, start of the log, bytes at most
_FETCHED = Struct(">ihqqqi")  # partition, error, three offsets, aborted transactions (-1: null)
_ABORTED = Struct(">qq")  # producer, first offset
_RECORDS = Struct(">ii")  # preferred replica, bytes of records (-1: null)


def install() -> None:
    """Let fetches be written and read by these layouts, not by a schema; once or many times."""
    _replace(FetchRequest_v11, RequestPartitions(Schema()))
    _replace(FetchResponse_v11, ResponsePartitions(Schema()))


class RequestPartitions(Array):  # type: ignore[misc]  # aiokafka has no types
    """The partitions of one topic in a request."""

    def encode(self, items: Sequence[Any] | None) -> bytes:
        """Return what the schema's own walk returns."""
        assert items is not None, "a topic is asked for with its partitions"
        return _COUNT.pack(len(items)) + b"".join(_ASKED.pack(*item) for item in items)


class ResponsePartitions(Array):  # type: ignore[misc]  # aiokafka has no types
    """The partitions of one topic in an answer."""

    def decode(self, data: BytesIO) -> list[Any]:
        """Return what the schema's own walk returns. Raises ValueError when bytes are missing."""
        try:
            (count,) = _COUNT.unpack(data.read(_COUNT.size))
            return [_fetched(data) for _ in range(count)]
        except error as short:
            raise ValueError("Buffer underrun decoding a fetch") from short


def _fetched(data: BytesIO) -> tuple[Any, ...]:
    *head, aborted_count = _FETCHED.unpack(data.read(_FETCHED.size))
    aborted = None
    if aborted_count >= 0:
        aborted = [_ABORTED.unpack(data.read(_ABORTED.size)) for _ in range(aborted_count)]
    replica, size = _RECORDS.unpack(data.read(_RECORDS.size))
    records = data.read(size) if size >= 0 else None
    if records is not None and len(records) != size:
        raise ValueError("Buffer underrun decoding a fetch")
    return (*head, aborted, replica, records)


def _replace(message: Any, partitions: Array) -> None:
    schema = message.SCHEMA
    place = schema.names.index("topics")
    name = schema.fields[place].array_of.names[0]
    fields = [*zip(schema.names, schema.fields, strict=True)]
    fields[place] = ("topics", Array((name, String("utf-8")), ("partitions", partitions)))
    message.SCHEMA = Schema(*fields)
