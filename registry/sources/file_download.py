"""Downloads files into a folder: resumed where they broke, never larger than told, and checked.

    .partial/<digest of the path>  ─► size and digest are right ─► fsync ─► rename to its path

What a killed process leaves in `.partial` is resumed by the next one.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final, Literal, Protocol

from registry.sources.errors import ModelSourceError
from registry.sources.lowest_rate import LowestRate
from registry.transfers import (
    ByteProgress,
    Report,
    TransferStoppedError,
    report_nothing,
    run_each,
)

TRIES_MAX: Final = 5
"""Tries of one file without a new byte."""

_PAUSE_S_MAX: Final = 8.0
_BLOCK_BYTES: Final = 1024 * 1024
_PARTIAL: Final = ".partial"


class BrokenTransferError(ModelSourceError):
    """The transfer broke."""

    code = "model_source_away"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file to download, as the source lists it."""

    path: str
    size: int  # bytes
    digest: str = ""  # hex; empty where the source states none
    algorithm: Literal["sha256", "git"] = "sha256"  # git: SHA-1 of a blob with its header


@dataclass(frozen=True, slots=True)
class Transfer:
    """The content of a file from `offset` on, which is 0 if the source cannot resume."""

    offset: int
    blocks: Iterable[bytes]


class FileSource(Protocol):
    """Opens the files of a source."""

    def open(self, file: RemoteFile, offset: int) -> AbstractContextManager[Transfer]:
        """Start a transfer. Raises BrokenTransferError if trying again may help, else others."""
        ...


@dataclass(frozen=True, slots=True)
class Download:
    """Downloads of one source into one folder."""

    source: FileSource
    folder: Path
    report: Report = report_nothing
    pause: Callable[[float], object] = time.sleep
    lowest_rate: Callable[[], LowestRate] = lambda: LowestRate(0)

    def run(self, name: str, files: Sequence[RemoteFile]) -> None:
        """Download all files, a few at once; files that are there and right are kept.

        Raises ModelSourceError, OSError.
        """
        self._require_space(name, files)
        progress = ByteProgress(f"download {name}", sum(file.size for file in files), self.report)
        run_each(lambda file, stop: self._fetch(file, progress, stop), files)
        shutil.rmtree(self.folder / _PARTIAL, ignore_errors=True)

    def _fetch(self, file: RemoteFile, progress: ByteProgress, stop: Event) -> None:
        """Download one file, again from nothing if its digest is wrong after it was resumed."""
        target = self.folder / file.path
        if _is_right(target, file):
            progress.advance(file.size)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = self.folder / _PARTIAL / hashlib.sha256(file.path.encode()).hexdigest()
        partial.parent.mkdir(exist_ok=True)
        was_resumed = partial.exists()
        self._receive(file, partial, progress, stop)
        if not _is_right(partial, file):
            partial.unlink()
            progress.advance(-file.size)
            if not was_resumed:
                raise ModelSourceError(f"{file.path!r} has not the digest that its source states.")
            self._fetch(file, progress, stop)
            return
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.rename(target)

    def _receive(
        self, file: RemoteFile, partial: Path, progress: ByteProgress, stop: Event
    ) -> None:
        tries, rate = 0, self.lowest_rate()
        with partial.open("ab") as output:
            size = os.fstat(output.fileno()).st_size
            if size > file.size:
                output.truncate(size := 0)
            progress.advance(size)
            while size < file.size:
                problem = "ended early"
                try:
                    self._append(file, output.fileno(), progress, rate, stop)
                except BrokenTransferError as failure:
                    problem = str(failure)
                reached = os.fstat(output.fileno()).st_size
                tries = 0 if reached > size else tries + 1
                size = reached
                if tries == TRIES_MAX:
                    raise ModelSourceError(f"{file.path!r} cannot be downloaded: {problem}")
                if size < file.size:
                    self.pause(min(2.0**tries, _PAUSE_S_MAX))

    def _append(
        self,
        file: RemoteFile,
        output: int,
        progress: ByteProgress,
        rate: LowestRate,
        stop: Event,
    ) -> None:
        """Append what the source sends. Raises ModelSourceError for more, or too slowly."""
        size = os.fstat(output).st_size
        with self.source.open(file, size) as transfer:
            if transfer.offset != size:
                os.ftruncate(output, transfer.offset)
                progress.advance(transfer.offset - size)
                size = transfer.offset
            rate.resume()
            for block in transfer.blocks:
                if stop.is_set():
                    raise TransferStoppedError
                size += len(block)
                if size > file.size:
                    raise ModelSourceError(
                        f"{file.path!r} has more than the {file.size} bytes that its source states."
                    )
                _write(output, block)
                progress.advance(len(block))
                rate.advance(len(block))

    def _require_space(self, name: str, files: Sequence[RemoteFile]) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        missing = sum(file.size for file in files if not (self.folder / file.path).is_file())
        partial = self.folder / _PARTIAL
        if partial.is_dir():
            missing -= sum(one.stat().st_size for one in partial.iterdir())
        free = shutil.disk_usage(self.folder).free
        if missing > free:
            raise ModelSourceError(
                f"{name} needs {missing} more bytes in {self.folder}, where {free} are free."
            )


def _write(output: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(output, rest) :]


def _is_right(path: Path, file: RemoteFile) -> bool:
    """Whether a file has the size and the digest that its source states."""
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    if not file.digest:
        return True
    # The digest of a blob in Git is no protection against collisions: it finds broken transfers.
    is_git = file.algorithm == "git"
    digest = hashlib.sha1(usedforsecurity=False) if is_git else hashlib.sha256()
    if is_git:
        digest.update(b"blob %d\x00" % file.size)
    with path.open("rb", buffering=0) as content:
        while block := content.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest() == file.digest
