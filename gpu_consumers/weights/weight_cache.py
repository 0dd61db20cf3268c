"""Keeps the files of model versions on local disk, by content, and stages whole versions.

    object store ─► temporary/ (hashed while written) ─► fsync ─► files/<sha256>
    files/<sha256> ─► hard link ─► versions/<version>/ ─► hashed again, through that folder ─► load

The processes of a host share a cache: each file is downloaded once. A staged version stays locked,
and so in the cache, until it is released or its process ends. A file that is found bad goes to
quarantine and is downloaded once more.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from core.clock import Clock
from gpu_consumers.weights import metrics
from gpu_consumers.weights.cache_eviction import evict_until
from gpu_consumers.weights.cache_folders import CacheFolders, fsync_folder
from gpu_consumers.weights.cache_locks import Wait, lock_name, lock_when_free, locked_file
from gpu_consumers.weights.download import download_file
from gpu_consumers.weights.errors import ModelRefusedError, RefusalReason
from gpu_consumers.weights.version_folder import (
    Defect,
    has_entry,
    inspect_folder,
    link_file,
    paths_by_digest,
)
from registry.manifests.manifest import ManifestFile
from storage.objects.object_store import ObjectReader

_DOWNLOADS: Final = 4
_REPAIRS_MAX: Final = 3
"""The first adds what is missing, the second replaces a bad entry by the cached file, the third
downloads that file once more. Each inspection finds the defects of one of them."""

_FILE_MODE: Final = 0o400
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FOLDER: Final = frozenset({errno.ENOTDIR, errno.ELOOP})
"""A file or a link has the path of a folder."""

_NOT_SUPPORTED: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class StagedVersion:
    """A folder with exactly the files of a version, until `release` or the end of the process."""

    def __init__(self, folder: Path, descriptor: int, clock: Clock) -> None:
        """`descriptor` is the folder's, with a shared lock."""
        self.folder = folder
        self._descriptor: int | None = descriptor
        self._clock = clock

    def release(self) -> None:
        """Allow that the version is evicted; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            mark_used(descriptor, self._clock)
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


@dataclass(frozen=True, slots=True)
class _Version:
    """A version while it is staged."""

    name: str
    files: Sequence[ManifestFile]
    descriptor: int


class WeightCache:
    """A cache folder of this host. Safe for threads and processes."""

    def __init__(self, root: Path, *, bytes_max: int, clock: Clock, wait: Wait) -> None:
        """Create the folder if needed, and remove what killed processes left.

        `bytes_max` limits the bytes of all files; `wait` ends what waits when the process stops.
        Raises SettingsError, StagingStoppedError.
        """
        self._folders = CacheFolders(root)
        self._bytes_max, self._clock, self._wait = bytes_max, clock, wait
        with self._cache_lock():
            self._folders.remove_abandoned()

    def stage(
        self, version: str, files: Sequence[ManifestFile], objects: ObjectReader
    ) -> StagedVersion:
        """Return the folder of a version; all of its files were hashed through the folder.

        Raises ModelRefusedError, ObjectStoreUnavailableError, StagingStoppedError.
        """
        try:
            staging = _Version(version, files, self._open_folder(version))
            try:
                self._complete(staging, objects)
                if not self._is_folder_of(staging.descriptor, version):
                    text = "The version's folder in the weight cache was replaced."
                    raise ModelRefusedError(RefusalReason.FILE, text)
            except BaseException:
                os.close(staging.descriptor)
                raise
        except OSError as failure:
            raise _cache_refusal(failure) from failure
        metrics.CACHE_BYTES.set(self._folders.used_bytes())
        return StagedVersion(self._folders.versions / version, staging.descriptor, self._clock)

    def _open_folder(self, version: str) -> int:
        """Return a descriptor of the version's folder, with a shared lock."""
        path = self._folders.versions / version
        while True:
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # evicted meanwhile
            except OSError as failure:
                if failure.errno not in _NO_FOLDER:
                    raise
                self._folders.move_to_quarantine(path)
                continue
            try:
                lock_when_free(descriptor, self._wait, shared=True)
                if self._is_folder_of(descriptor, version):
                    mark_used(descriptor, self._clock)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _is_folder_of(self, descriptor: int, version: str) -> bool:
        try:
            named = (self._folders.versions / version).lstat()
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def _complete(self, version: _Version, objects: ObjectReader) -> None:
        """Inspect the folder, and repair it until it has no defects."""
        if not inspect_folder(version.descriptor, version.files, self._wait):
            return
        with locked_file(self._folders.locks / lock_name("version", version.name), self._wait):
            # Another process may have repaired the folder while this one waited.
            defects = inspect_folder(version.descriptor, version.files, self._wait)
            for _ in range(_REPAIRS_MAX):
                if not defects:
                    return
                self._quarantine(version, defects)
                self._add_missing(version, objects)
                defects = inspect_folder(version.descriptor, version.files, self._wait)
        if defects:
            text = f"The file {defects[0].path!r} {defects[0].what} in the weight cache."
            raise ModelRefusedError(RefusalReason.FILE, text)

    def _quarantine(self, version: _Version, defects: Sequence[Defect]) -> None:
        """Move bad entries out of the version's folder, and the cached file that they are."""
        digests = {file.path: file.sha256 for file in version.files}
        for defect in defects:
            if not defect.is_present:
                continue
            metrics.QUARANTINED.inc()
            entry = self._folders.versions / version.name / defect.path
            digest = digests.get(defect.path)
            if digest is None:
                self._folders.move_to_quarantine(entry)
                continue
            cached = self._folders.files / digest
            with self._file_lock(digest):
                with suppress(FileNotFoundError):
                    if os.path.samestat(cached.lstat(), entry.lstat()):
                        cached.unlink()
                self._folders.move_to_quarantine(entry)

    def _add_missing(self, version: _Version, objects: ObjectReader) -> None:
        """Link what is cached, make space for the rest, then download and link it."""
        by_digest = paths_by_digest(version.files)
        total = sum(files[0].size for files in by_digest.values())
        if total > self._bytes_max:
            text = f"The version has {total} bytes; the weight cache may have {self._bytes_max}."
            raise ModelRefusedError(RefusalReason.CACHE, f"{text} Raise weight_cache_gib_max.")
        with self._cache_lock():
            missing = [
                files for digest, files in by_digest.items() if not self._link(version, files)
            ]
            size = sum(files[0].size for files in missing)
            self._make_space(size)
            descriptor, path = self._folders.create_reservation(size)
        try:
            with ThreadPoolExecutor(_DOWNLOADS) as pool:
                for file in pool.map(lambda files: self._add(version, files, objects), missing):
                    size -= file.size
                    os.ftruncate(descriptor, size)
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def _make_space(self, size: int) -> None:
        self._folders.remove_abandoned()
        if not evict_until(self._folders, self._bytes_max - size):
            text = f"The weight cache may have {self._bytes_max} bytes. {size} more are needed, and"
            text += f" {self._folders.used_bytes()} belong to versions that processes have staged."
            raise ModelRefusedError(RefusalReason.CACHE, text)

    def _link(self, version: _Version, files: Sequence[ManifestFile]) -> bool:
        """Link a cached file to its paths; return whether it is in the folder now."""
        source = str(self._folders.files / files[0].sha256)
        try:
            for file in files:
                if not has_entry(version.descriptor, file.path):
                    link_file(version.descriptor, file.path, source)
        except FileNotFoundError:
            return False
        return True

    def _add(
        self, version: _Version, files: Sequence[ManifestFile], objects: ObjectReader
    ) -> ManifestFile:
        """Download a file unless another process did so meanwhile, and link it."""
        with self._file_lock(files[0].sha256):
            if not self._link(version, files):
                self._download(files[0], objects)
                self._link(version, files)
        return files[0]

    def _download(self, file: ManifestFile, objects: ObjectReader) -> None:
        with self._cache_lock():
            descriptor, temporary = self._folders.create_download()
        try:
            _allocate(descriptor, file.size)
            download_file(objects, file, lambda block: _write_all(descriptor, block), self._wait)
            mark_used(descriptor, self._clock)
            os.fchmod(descriptor, _FILE_MODE)
            os.fsync(descriptor)
            temporary.rename(self._folders.files / file.sha256)
            fsync_folder(self._folders.files)
            metrics.DOWNLOADED_BYTES.inc(file.size)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)

    @contextmanager
    def _cache_lock(self) -> Iterator[None]:
        """Keep the lock of the cache's structure, for short work only."""
        with locked_file(self._folders.lock, self._wait):
            yield

    @contextmanager
    def _file_lock(self, digest: str) -> Iterator[None]:
        with locked_file(self._folders.locks / lock_name("file", digest), self._wait):
            yield


def mark_used(descriptor: int, clock: Clock) -> None:
    """Set the last use of a version, or of a new file: its modification time."""
    used_ns = int(clock.wall_s() * 1e9)
    os.utime(descriptor, ns=(used_ns, used_ns))


def _allocate(descriptor: int, size: int) -> None:
    """Reserve the blocks of a file, so that a full disk shows before the download."""
    if not size:
        return
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as failure:
        if failure.errno not in _NOT_SUPPORTED:
            raise


def _write_all(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]


def _cache_refusal(failure: OSError) -> ModelRefusedError:
    what = "is full" if failure.errno in _FULL else "cannot be used"
    reason = os.strerror(failure.errno) if failure.errno else type(failure).__name__
    return ModelRefusedError(RefusalReason.CACHE, f"The disk of the weight cache {what}: {reason}.")
