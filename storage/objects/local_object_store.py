"""Stores objects as files below a folder of one host or a shared file system with hard links.

    begin_upload ─► .temporary/<random> ─► fsync ─► link or rename to <key> ─► fsync of its folder
    delete ─► unlink ─► fsync of its folder: no power failure restores a removed object

A crash leaves only files in `.temporary`; no key can start with a dot.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

from core.clock import Clock
from storage.objects import metrics
from storage.objects.errors import (
    ObjectExistsError,
    ObjectKeyError,
    ObjectNotFoundError,
    ObjectStoreFullError,
    ObjectStoreRefusedError,
    ObjectStoreUnavailableError,
)
from storage.objects.object_store import (
    BLOCK_BYTES,
    ObjectBlocks,
    ObjectInfo,
    Upload,
    checked_key,
    checked_prefix,
)

_TEMPORARY: Final = ".temporary"
_FILE_MODE: Final = 0o600
_FOLDER_MODE: Final = 0o700
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_UNAVAILABLE: Final = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
)
_REFUSED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_PUBLISH_TRIES_MAX: Final = 8


class LocalObjectStore:
    """An `ObjectStore` in a folder."""

    def __init__(self, root: Path, *, clock: Clock) -> None:
        """Create `root` if it is missing; every role of the host uses the same folder.

        Only its owner may enter it: the files of earlier releases below it are wider open.
        """
        self._root = root
        self._clock = clock
        with translate_disk_errors():
            for folder in (root, root / _TEMPORARY):
                _make_private(folder)

    def begin_upload(self, key: str) -> "LocalUpload":
        """See `ObjectStore`."""
        target = self._path(key)
        temporary = self._root / _TEMPORARY / secrets.token_hex(16)
        return LocalUpload(key, temporary=temporary, target=target, root=self._root)

    def read(self, key: str, *, offset: int = 0, length: int | None = None) -> ObjectBlocks:
        """See `ObjectStore`."""
        path = self._path(key)
        with translate_disk_errors(), translate_missing_file(key):
            file = path.open("rb", buffering=0)
            file.seek(offset)

        def read(size: int) -> bytes:
            with translate_disk_errors():
                return file.read(size)

        return ObjectBlocks(read, file.close, length)

    def size(self, key: str) -> int:
        """See `ObjectStore`."""
        path = self._path(key)
        with translate_disk_errors(), translate_missing_file(key):
            if path.is_dir():
                raise ObjectNotFoundError(key=key)
            return path.stat().st_size

    def delete(self, key: str) -> None:
        """See `ObjectStore`. Also removes folders that become empty: each job has one."""
        path = self._path(key)
        with translate_disk_errors():
            try:
                path.unlink()
            except FileNotFoundError:
                folder = path.parent  # an earlier `delete` may have been killed before its fsync
            except (NotADirectoryError, IsADirectoryError):
                return
            else:
                folder = _remove_empty_folders(path.parent, self._root)
            while not _fsync_folder(folder):
                folder = folder.parent

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        folder = checked_prefix(prefix).rpartition("/")[0]
        with translate_disk_errors():
            for path in _files_below(self._root / folder):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix):
                    with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                        seen = path.stat()
                        yield ObjectInfo(key, seen.st_size, seen.st_mtime)

    def sweep_temporary(self, older_than_s: float) -> int:
        """See `ObjectStore`. Age counts from the last write."""
        newest_s = self._clock.wall_s() - older_than_s
        count = 0
        with translate_disk_errors():
            for path in (self._root / _TEMPORARY).iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if path.stat().st_mtime <= newest_s:
                        path.unlink()
                        count += 1
        return count

    def _path(self, key: str) -> Path:
        return self._root / checked_key(key)


class LocalUpload(Upload):
    """An upload into a temporary file of the same file system."""

    def __init__(self, key: str, *, temporary: Path, target: Path, root: Path) -> None:
        """Create `temporary`; `target` lies below `root`."""
        super().__init__(key)
        self._temporary = temporary
        self._target = target
        self._root = root
        with translate_disk_errors():
            self._file = open(  # noqa: SIM115  pathlib sets no mode; the upload closes it
                temporary, "xb", buffering=BLOCK_BYTES, opener=partial(os.open, mode=_FILE_MODE)
            )

    def _store(self, data: bytes) -> None:
        with translate_disk_errors():
            self._file.write(data)

    def _publish(self, *, if_absent: bool) -> None:
        """Make the content durable, then the name visible, then the name durable, in this order."""
        with translate_disk_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._link(if_absent=if_absent)
            _fsync_folder(self._target.parent)
            self._temporary.unlink(missing_ok=True)

    def _link(self, *, if_absent: bool) -> None:
        for _ in range(_PUBLISH_TRIES_MAX):
            try:
                _make_folders(self._target.parent, self._root)
                if if_absent:
                    os.link(self._temporary, self._target)
                else:
                    self._temporary.replace(self._target)
            except FileNotFoundError:
                continue  # `delete` has just removed the empty folder
            except FileExistsError:
                raise ObjectExistsError(key=self.key) from None
            except (NotADirectoryError, IsADirectoryError):
                raise ObjectKeyError("The key is a folder of another.", key=self.key) from None
            return
        raise ObjectStoreUnavailableError(key=self.key)

    def _discard(self) -> None:
        with contextlib.suppress(OSError):  # closing flushes, and the disk may be full
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


@contextlib.contextmanager
def translate_disk_errors() -> Iterator[None]:
    """Translate errors of a full, failing or refusing disk; other errors are defects.

    Raises ObjectStoreFullError, ObjectStoreUnavailableError, ObjectStoreRefusedError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ObjectStoreFullError from error
        if error.errno in _UNAVAILABLE:
            metrics.UNAVAILABLE.inc()
            raise ObjectStoreUnavailableError from error
        if error.errno in _REFUSED:
            raise ObjectStoreRefusedError from error
        raise


@contextlib.contextmanager
def translate_missing_file(key: str) -> Iterator[None]:
    """Translate the errors of a path without a file. Raises ObjectNotFoundError."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ObjectNotFoundError(key=key) from None


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield files in constant memory per level, without names that start with a dot."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path))
            else:
                yield Path(entry.path)


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700; restrict an existing one that the user owns."""
    folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o077:
        folder.chmod(_FOLDER_MODE)


def _make_folders(folder: Path, root: Path) -> None:
    """Create missing folders below `root`, each name durable in its parent."""
    if folder == root or folder.is_dir():
        return
    _make_folders(folder.parent, root)
    try:
        folder.mkdir(mode=_FOLDER_MODE)
    except FileExistsError:
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "a file has the name of the folder") from None
    _fsync_folder(folder.parent)


def _remove_empty_folders(folder: Path, root: Path) -> Path:
    """Remove `folder` and its parents while they are empty; return the first that is not."""
    while folder != root:
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass  # removed by another `delete`
        except OSError:
            break  # not empty
        folder = folder.parent
    return folder


def _fsync_folder(folder: Path) -> bool:
    """Make the names in a folder durable; False when `delete` has removed the folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True
