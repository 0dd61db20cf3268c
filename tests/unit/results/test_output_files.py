"""Goal: lines are rendered while earlier ones are written, and a failure leaves no object."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from core.clock import SystemClock
from core.outcomes import Outcome
from jobs.input.input_files import InputFiles
from results.finaliser.input_custom_ids import CompleteCustomIds
from results.finaliser.output_files import ResultFiles, write_result_files
from results.finaliser.output_lines import ItemRow, LineTemplate
from storage.objects.errors import ObjectStoreFullError
from storage.objects.local_object_store import LocalObjectStore, LocalUpload
from storage.objects.object_store import StoredObject, Upload

JOB = UUID(int=7)
BODY = b'{"text":"' + b"x" * 300_000 + b'"}'
WAIT_S = 20.0


def row(index: int, outcome: Outcome = Outcome.SUCCEEDED) -> ItemRow:
    """A row whose line fills half a buffer."""
    return ItemRow(index, outcome, 200, f"id-{index}", None, None, BODY, None)


class Watched:
    """An upload whose writes a test can observe, delay or fail."""

    def __init__(self, upload: Upload) -> None:
        self._upload = upload
        self.go_on, self.begun = threading.Event(), threading.Event()
        self.go_on.set()
        self.failure: Exception | None = None

    def write(self, data: bytes) -> None:
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        self._upload.write(data)

    def complete(self, *, if_absent: bool = False) -> StoredObject:
        return self._upload.complete(if_absent=if_absent)

    def abort(self) -> None:
        self._upload.abort()

    def __enter__(self) -> "Watched":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class WatchedStore(LocalObjectStore):
    """A real file store that exposes its uploads."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, clock=SystemClock())
        self.uploads: dict[str, Watched] = {}

    def begin_upload(self, key: str) -> LocalUpload:
        watched = Watched(super().begin_upload(key))
        return cast(LocalUpload, self.uploads.setdefault(key.rpartition("/")[2], watched))


@pytest.fixture
def store(tmp_path: Path) -> WatchedStore:
    return WatchedStore(tmp_path)


def write(store: WatchedStore, rows: Iterator[ItemRow]) -> ResultFiles:
    ids = CompleteCustomIds(store, InputFiles("in"))
    return write_result_files(store, rows, job_id=JOB, epoch=1, custom_ids=ids)


def files_below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


def test_lines_of_both_files_stay_in_order(store: WatchedStore) -> None:
    rows = [row(i, Outcome.FAILED if i % 3 == 0 else Outcome.SUCCEEDED) for i in range(40)]
    written = write(store, iter(rows))
    template = LineTemplate(JOB)
    for stored, outcome in ((written.output, Outcome.SUCCEEDED), (written.error, Outcome.FAILED)):
        assert stored is not None
        lines = [template.line(one, one.custom_id) for one in rows if one.outcome == outcome]
        expected = b"".join(part for line in lines for part in line)
        with store.read(stored.key) as blocks:
            assert b"".join(blocks) == expected
        assert stored.size_bytes == len(expected)
        assert stored.sha256_hex == hashlib.sha256(expected).hexdigest()


def test_writes_run_while_lines_are_rendered(store: WatchedStore) -> None:
    def rows() -> Iterator[ItemRow]:
        output = store.uploads["output.jsonl"]
        output.go_on.clear()
        yield row(0)
        yield row(1)  # fills the first buffer
        assert output.begun.wait(WAIT_S)
        yield row(2)  # requested only if rendering does not wait for the write
        output.go_on.set()

    assert write(store, rows()).output is not None


@pytest.mark.parametrize("count", [2, 3, 20], ids=["at the end", "behind it", "on the way"])
def test_failed_write_leaves_no_object(store: WatchedStore, tmp_path: Path, count: int) -> None:
    taken = []

    def rows() -> Iterator[ItemRow]:
        store.uploads["output.jsonl"].failure = ObjectStoreFullError()
        for index in range(count):
            taken.append(index)
            yield row(index)

    with pytest.raises(ObjectStoreFullError):
        write(store, rows())
    assert len(taken) <= 4, "what nobody will keep was rendered"
    assert files_below(tmp_path) == []


def test_failing_reader_leaves_no_object(store: WatchedStore, tmp_path: Path) -> None:
    def rows() -> Iterator[ItemRow]:
        output = store.uploads["output.jsonl"]
        output.go_on.clear()
        yield row(0)
        yield row(1)
        assert output.begun.wait(WAIT_S)
        threading.Timer(0.2, output.go_on.set).start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write(store, rows())
    assert files_below(tmp_path) == []
