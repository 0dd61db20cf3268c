"""A batch with its files in memory, for tests of its views."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

from core.outcomes import Outcome
from jobs.input.input_files import InputFile, InputFiles
from results.finaliser.output_lines import ItemRow
from results.views.result_sources import ResultSource, StoredFile
from storage.objects.errors import ObjectNotFoundError
from storage.objects.object_store import ObjectBlocks, ObjectStore

JOB_ID = UUID(int=0xABC)
TENANT_ID = UUID(int=7)


@dataclass(frozen=True)
class JobRow:
    """The columns of a job that a source reads."""

    state: str = "in_progress"
    total_count: int = 100
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    id: UUID = JOB_ID
    tenant_id: UUID = TENANT_ID
    zero_retention: bool = False
    created_at: datetime = datetime(2026, 11, 21, tzinfo=UTC)


class MemoryObjects:
    """A store of bytes in memory; small `block_bytes` split lines across blocks."""

    def __init__(self, objects: Mapping[str, bytes], block_bytes: int = 1000) -> None:
        self.objects = dict(objects)
        self.bytes_read = 0
        self._block_bytes = block_bytes

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        if key not in self.objects:
            raise ObjectNotFoundError(key=key)
        data = memoryview(self.objects[key])[offset:]
        place = 0

        def take(count: int) -> bytes:
            nonlocal place
            block = bytes(data[place : place + min(count, self._block_bytes)])
            place += len(block)
            self.bytes_read += len(block)
            return block

        return ObjectBlocks(take, lambda: None, length)

    @property
    def store(self) -> ObjectStore:
        return cast(ObjectStore, self)


def source(
    store: MemoryObjects, *, output: str | None = None, error: str | None = None, **job: Any
) -> ResultSource:
    """A source with the input `input`, and `input-2` after it if it exists."""

    def stored(key: str) -> StoredFile:
        return StoredFile(key, len(store.objects.get(key, b"")))

    first, second = store.objects.get("input", b""), store.objects.get("input-2")
    appended = [InputFile("input-2", first.count(b"\n"), len(second))] if second else []
    inputs = InputFiles("input", appended, first_bytes=len(first))
    row: Any = JobRow(**job)
    files = [stored(key) if key else None for key in (output, error)]
    return ResultSource(row, inputs, files[0], files[1])


def row(index: int, **fields: Any) -> ItemRow:
    given: dict[str, Any] = {
        "item_index": index,
        "outcome": Outcome.SUCCEEDED.value,
        "status_code": 200,
        "custom_id": f"request-{index}",
        "error_code": None,
        "error_message": None,
        "body": b'{"answer":%d}' % index,
        "body_key": None,
    }
    return ItemRow(**(given | fields))
