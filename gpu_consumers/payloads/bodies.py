"""Bodies that fit no record: read from the input file on the way in, stored on the way out."""

from uuid import UUID

import msgspec

from core.errors import Disposition, MillraceError
from core.ids import new_uuid
from core.object_names import answer_prefix
from storage.objects.object_content import read_object, write_object
from storage.objects.object_store import ObjectStore
from topics.records.records import Item, JobRef

ANSWER_BYTES_MAX = 512 * 1024
"""A larger answer goes to the object store; its record carries the key."""


class InputUnreadableError(MillraceError):
    """The input file is not the one that was validated."""

    code = "input_unreadable"
    disposition = Disposition.REJECT


class _Line(msgspec.Struct):
    body: msgspec.Raw


_LINE = msgspec.json.Decoder(_Line)


def load_body(objects: ObjectStore, job: JobRef, item: Item) -> bytes:
    """Return the body of an item that travels by (file, offset, length).

    The line was validated by intake. Raises InputUnreadableError and what a store raises.
    """
    line = read_object(objects, job.input_key, offset=item.offset, length=item.length)
    try:
        return bytes(_LINE.decode(line).body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise InputUnreadableError(index=item.index) from None


def store_body(objects: ObjectStore, job_id: UUID, body: bytes) -> str:
    """Store an answer under a name of this execution alone and return its key.

    Raises what a store raises.
    """
    key = answer_prefix(job_id) + new_uuid().hex
    write_object(objects, key, body)
    return key
