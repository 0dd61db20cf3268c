"""The folders of a weight cache, and the bytes that they hold.

    files/<sha256>       one file of a model, by content; read-only
    versions/<version>/  hard links to the files of one version
    quarantine/          bad entries, the newest of them, for an operator to look at
    temporary/           downloads, reservations and evicted folders
    locks/               lock files, a fixed number

What a process writes to `temporary` it keeps locked, so an entry without a lock is left from a
process that was killed.
"""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from core.errors import SettingsError
from gpu_consumers.weights.cache_locks import try_lock

QUARANTINE_MAX: Final = 8
"""Entries in quarantine. Their bytes count as used, and are the first to be evicted."""

_DOWNLOAD: Final = "download"
_RESERVATION: Final = "reservation"
_EVICTED: Final = "evicted"


class CacheFolders:
    """The paths of a cache. Methods that change `temporary` need the cache's lock."""

    def __init__(self, root: Path) -> None:
        """Create the folders; only their owner may enter them.

        Raises SettingsError for a folder that is a link, of another user, or cannot be created.
        """
        self.root = root.absolute()
        self.files = self.root / "files"
        self.versions = self.root / "versions"
        self.quarantine = self.root / "quarantine"
        self.temporary = self.root / "temporary"
        self.locks = self.root / "locks"
        self.lock = self.locks / "cache"
        try:
            self.root.parent.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, *self._inner()):
                _make_private(folder)
        except OSError as failure:
            raise SettingsError(f"The weight cache cannot be used: {failure.strerror}.") from None

    def _inner(self) -> tuple[Path, ...]:
        return (self.files, self.versions, self.quarantine, self.temporary, self.locks)

    def used_bytes(self) -> int:
        """Return the bytes of all files, each inode once, and of what is reserved.

        A download is part of its reservation.
        """
        sizes: dict[int, int] = {}
        for folder in (self.files, self.versions, self.quarantine, self.temporary):
            for path in _files_below(folder):
                if folder == self.temporary and path.name.startswith(f"{_DOWNLOAD}-"):
                    continue
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    sizes[status.st_ino] = status.st_size
        return sum(sizes.values())

    def create_download(self) -> tuple[int, Path]:
        """Return an open, locked file for a download, and its path."""
        return self._create_locked(_DOWNLOAD)

    def create_reservation(self, size: int) -> tuple[int, Path]:
        """Return an open, locked file without content whose size counts as used."""
        descriptor, path = self._create_locked(_RESERVATION)
        try:
            os.ftruncate(descriptor, size)
        except BaseException:
            path.unlink()
            os.close(descriptor)
            raise
        return descriptor, path

    def remove_version(self, name: str) -> None:
        """Remove a version's folder: it vanishes at once, then its links are removed."""
        target = self._unused_name(_EVICTED)
        (self.versions / name).rename(target)
        remove_entry(target)

    def remove_abandoned(self) -> None:
        """Remove what killed processes left in `temporary`."""
        for path in list(self.temporary.iterdir()):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:  # renamed meanwhile, or a link
                if path.is_symlink():
                    path.unlink(missing_ok=True)
                continue
            try:
                if try_lock(descriptor):
                    remove_entry(path)
            finally:
                os.close(descriptor)

    def move_to_quarantine(self, path: Path) -> None:
        """Move an entry to `quarantine`, and remove the oldest of too many."""
        target = self.quarantine / f"{path.name}-{secrets.token_hex(4)}"
        with suppress(FileNotFoundError):
            path.rename(target)
        for old in self.quarantined()[:-QUARANTINE_MAX]:
            remove_entry(old)

    def quarantined(self) -> list[Path]:
        """Return the entries in quarantine, the oldest first."""
        found = []
        for path in self.quarantine.iterdir():
            with suppress(FileNotFoundError):
                found.append((path.lstat().st_ctime_ns, path))  # set by the rename
        return [path for _, path in sorted(found)]

    def _create_locked(self, kind: str) -> tuple[int, Path]:
        path = self._unused_name(kind)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        is_locked = try_lock(descriptor)
        assert is_locked, "the cache's lock keeps others from a new file"
        return descriptor, path

    def _unused_name(self, kind: str) -> Path:
        return self.temporary / f"{kind}-{secrets.token_hex(8)}"


def remove_entry(path: Path) -> None:
    """Remove a file, a link or a folder with all in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.geteuid():
        raise SettingsError(f"{str(folder)!r} of the weight cache is a link or of another user.")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
