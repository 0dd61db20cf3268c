"""Emission: reads lines of an input file and sends their items as chunk records.

    read from the cursor ─► chunks ─► send ─► acknowledged ─► advance the cursor (fenced)

A crash at any arrow emits the items behind the cursor again; every reader accepts repeats.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec

from core.bodies.output_estimator import OUTPUT_TOKENS_PRIOR
from core.bodies.token_estimates import requested_tokens
from core.errors import Disposition, MillraceError
from core.limits import CHUNK_BYTES_MAX
from core.object_names import lines_key
from jobs import metrics
from jobs.expansion.cursors import ExpansionCursor
from jobs.expansion.item_models import ItemModels
from jobs.expansion.job_loads import JOB_CLASS
from jobs.input.line_reader import InputChangedError, Line, decode_validated, input_lines
from jobs.ordering.ordered_files import PREFIX_BYTES_MAX, parse_ordered_line
from jobs.settings import LINE_BYTES_CEILING
from storage.crypto.body_ciphers import BodyCipher, BodyDirection, CipherContext
from storage.crypto.data_keys import DataKeyDestroyedError, DataKeys
from storage.objects.errors import ObjectKeyError, ObjectStoreRefusedError
from storage.objects.object_store import ObjectBlocks, ObjectStore
from topics.clients.producer import RecordSender
from topics.records.chunks import send_chunk, split_into_chunks
from topics.records.records import Chunk, Item, JobRef

_LOG: Final = logging.getLogger(__name__)


class _Request(msgspec.Struct, gc=False):
    """The fields of a line that expansion reads. The last value of a repeated key counts."""

    custom_id: Any
    body: msgspec.Raw


_REQUEST: Final = msgspec.json.Decoder(_Request)


class ItemParsingError(InputChangedError):
    """A valid line could not be parsed: a defect of Millrace, which must stop only its job."""

    code = "item_parsing_failed"


class ItemReader:
    """Reads the items of a validated file in emission order, from a cursor. Not thread-safe."""

    def __init__(
        self,
        objects: ObjectStore,
        job: JobRef,
        cursor: ExpansionCursor,
        order_key: str = "",
        first_index: int = 0,
        models: ItemModels | None = None,
    ) -> None:
        """Open the file, or the lines of its order. Raises the errors of `ObjectStore.read`.

        `first_index` is that of the first item of the file. `models` notes those of the items that
        are read; None: the job has one.
        """
        self.models = models
        self._parse_item = parse_item if models is None else models.noting(parse_item)
        self.cursor = cursor  # behind the last item that was read
        self._endpoint = job.endpoint
        self._is_ordered, self._first_index = bool(order_key), first_index
        self._parse_line = self._parse_ordered if order_key else self._parse_item
        key = lines_key(order_key) if order_key else job.input_key
        self._blocks: ObjectBlocks = objects.read(key, offset=cursor.byte_offset)
        self._lines: Iterator[Line] = input_lines(
            self._blocks,
            line_bytes_max=LINE_BYTES_CEILING + PREFIX_BYTES_MAX * self._is_ordered,
            offset=cursor.byte_offset,
            lines_before=cursor.line_number,
        )

    def read_items(
        self, count_max: int, bytes_max: int, expected_output: float = OUTPUT_TOKENS_PRIOR
    ) -> list[Item]:
        """Return the next items: at most `count_max`, and none after `bytes_max` were read.

        `expected_output` is the expected tokens of one sequence. Raises InputChangedError at a line
        that validation would have rejected.
        """
        items: list[Item] = []
        index, byte_count = self.cursor.item_index, 0
        parse, endpoint = self._parse_line, self._endpoint
        number, end = self.cursor.line_number, self.cursor.byte_offset
        while len(items) < count_max and byte_count < bytes_max:
            next_line = next(self._lines, None)
            if next_line is None:
                break
            number, offset, line = next_line
            items.append(parse(index, offset, line, endpoint, expected_output))
            size = len(line or b"")
            end = offset + size + 1  # one past the end if the last line has no newline
            index += 1
            byte_count += size
        self.cursor = ExpansionCursor(end, number, index)
        return items

    def close(self) -> None:
        """Close the file."""
        self._blocks.close()

    def _parse_ordered(
        self, position: int, _offset: int, entry: bytes | None, endpoint: str, expected: float
    ) -> Item:
        """Return the item of an entry of the order; its offset is that in the file.

        The position is compared because a release that knows no orders may have moved the cursor.
        """
        found = parse_ordered_line(entry)
        if found.position + self._first_index != position:
            raise InputChangedError(index=position)
        index = found.item_index + self._first_index
        return self._parse_item(
            index, found.offset, found.line, endpoint, expected, prefix_group=found.group
        )


def parse_item(
    index: int,
    offset: int,
    line: bytes | None,
    endpoint: str,
    expected_output: float = OUTPUT_TOKENS_PRIOR,
    *,
    prefix_group: int = 0,
) -> Item:
    """Return the item in a line of a validated file. Raises InputChangedError, and no other error.

    `expected_output` is the expected tokens of one sequence.
    """
    try:
        request = decode_validated(_REQUEST.decode, line, index)
        if type(request.custom_id) is not str:
            raise InputChangedError(index=index)
        body = bytes(request.body)
        requested = requested_tokens(endpoint, body)
        output = requested.expected_output(expected_output)
        total = requested.total_with(output)
    except MillraceError:
        raise
    except Exception:  # noqa: BLE001  one line would end each intake that takes its job
        _LOG.exception("an item cannot be parsed", extra={"index": index})
        raise ItemParsingError(index=index) from None
    length = 0
    if len(body) > CHUNK_BYTES_MAX:  # it travels by reference
        body, length = b"", len(line or b"")
    return Item(index, request.custom_id, body, total, 1, offset, length, output, prefix_group)


def send_items(
    sender: RecordSender,
    job: JobRef,
    items: Iterable[Item],
    keys: DataKeys | None = None,
    positions: Mapping[int, int] | None = None,
    models: ItemModels | None = None,
) -> int:
    """Send items as chunk records; return how many items. Await their acknowledgement
    before relying on them.

    `positions` are those in the order of the job, by index; None: it is that of the indexes.
    `models` has noted those of the items; None: all have that of `job`.
    A job with a key needs `keys`: its bodies are sent encrypted, without their `custom_id`s.
    Raises DataKeyDestroyedError, and the errors of the object store for such a job.
    """
    count = 0
    if job.key_name:
        if keys is None:  # never send these bodies in clear
            raise DataKeyDestroyedError(job=job.job_id)
        items = encrypt_items(job, items, keys.load_or_create(job.key_name))
    chunks = ((job, chunk) for chunk in split_into_chunks(items))
    for ref, chunk in chunks if models is None else models.chunks(job, items):
        position = None if positions is None else positions[chunk[0].index]
        send_chunk(sender, Chunk(ref, chunk, position=position), JOB_CLASS)
        count += len(chunk)
    return count


def encrypt_items(job: JobRef, items: Iterable[Item], cipher: BodyCipher) -> Iterator[Item]:
    """Yield items with encrypted bodies and no `custom_id`. Items by reference have no body."""
    for item in items:
        place = CipherContext(job.job_id, BodyDirection.IN, item.index)
        body = item.body if item.length else cipher.encrypt(item.body, place)
        yield msgspec.structs.replace(item, body=body, custom_id="")


def record_job_failure(job_id: UUID, failure: MillraceError, event: str) -> None:
    """Count and log a failure that sets only its job aside; raise any other failure.

    An object store may refuse a single object: archived, encrypted under a disabled key, or with
    its own access rights. If that stopped the role, it would stop every intake process in turn. If
    the store refuses every object, each job fails by itself and continues once the store is fixed.
    """
    is_of_object = isinstance(failure, ObjectStoreRefusedError | ObjectKeyError)
    if failure.disposition is Disposition.CRASH and not is_of_object:
        raise failure
    metrics.JOB_FAILURES.inc()
    facts = {"job": job_id.hex, "code": failure.code, "facts": failure.facts}
    _LOG.error(event, extra=facts)
