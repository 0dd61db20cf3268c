"""Inspects and links the files of one version's folder, by descriptors that follow no link.

The folder is named by an open descriptor, so what is hashed lies in the folder that is locked, even
if another folder or a link takes its path meanwhile.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import Final

from gpu_consumers.weights.cache_locks import Wait
from gpu_consumers.weights.errors import StagingStoppedError
from registry.manifests.manifest import InvalidManifestError, ManifestFile
from registry.manifests.model_folder import open_regular

_BLOCK_BYTES: Final = 1024 * 1024
_THREADS: Final = max(2, min(16, os.cpu_count() or 1))
"""hashlib releases the interpreter's lock: as many files are hashed at once as there are cores."""

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Defect:
    """A path of a version's folder that is not as the manifest says."""

    path: str
    what: str
    is_present: bool = True


def inspect_folder(folder: int, files: Sequence[ManifestFile], wait: Wait) -> list[Defect]:
    """Return what differs between a folder and the listed files: none if all is as listed.

    Every file is hashed, but only once all are present and nothing else is: otherwise these defects
    are returned alone. Raises StagingStoppedError, OSError.
    """
    listed = {file.path: file for file in files}
    folders = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    present, defects = set(), []
    for path, is_folder in _entries(folder, folders):
        if path in listed and not is_folder:
            present.add(path)
        elif path not in folders or not is_folder:
            defects.append(Defect(path, "is not a file of the version"))
    blocked = {defect.path for defect in defects}
    for path in listed.keys() - present - blocked:
        defects.append(Defect(path, "is missing", is_present=False))
    if defects:
        return sorted(defects, key=lambda defect: defect.path)
    # The largest first, so that no thread is left alone with a large one at the end.
    largest = sorted(files, key=lambda file: -file.size)
    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(pool.map(lambda file: _file_defect(folder, file, wait), largest))
    return sorted(filter(None, found), key=lambda defect: defect.path)


def link_file(folder: int, path: str, source: str) -> None:
    """Make `path` a hard link of a cached file; missing folders are created.

    An entry that is there already stays. Raises FileNotFoundError if `source` is not there, and
    NotADirectoryError or another OSError if a part of the path is no folder.
    """
    *folders, name = path.split("/")
    parent = os.dup(folder)
    try:
        for part in folders:
            with suppress(FileExistsError):
                os.mkdir(part, 0o700, dir_fd=parent)
            child = os.open(part, _FOLDER, dir_fd=parent)
            os.close(parent)
            parent = child
        with suppress(FileExistsError):
            os.link(source, name, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        os.close(parent)


def has_entry(folder: int, path: str) -> bool:
    """Whether anything has this path."""
    try:
        os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def paths_by_digest(files: Sequence[ManifestFile]) -> Mapping[str, list[ManifestFile]]:
    """Return the files of each digest: equal files of a version are stored once."""
    found: dict[str, list[ManifestFile]] = {}
    for file in files:
        found.setdefault(file.sha256, []).append(file)
    return found


def _entries(folder: int, entered: set[str], prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield each path and whether it is a real folder; only folders of `entered` are entered."""
    with os.scandir(folder) as entries:
        for entry in entries:
            path, is_folder = prefix + entry.name, entry.is_dir(follow_symlinks=False)
            yield path, is_folder
            if is_folder and path in entered:
                child = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    yield from _entries(child, entered, f"{path}/")
                finally:
                    os.close(child)


def _file_defect(folder: int, file: ManifestFile, wait: Wait) -> Defect | None:
    try:
        descriptor = open_regular(folder, file.path)
    except InvalidManifestError:
        return Defect(file.path, "is not a regular file")
    except OSError as failure:  # such as a link, or removed meanwhile
        return Defect(file.path, f"cannot be opened: {os.strerror(failure.errno or 0)}")
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size:
            return Defect(file.path, f"has {size} bytes instead of {file.size}")
        try:
            digest = _hash_descriptor(descriptor, wait)
        except OSError as failure:
            return Defect(file.path, f"cannot be read: {os.strerror(failure.errno or 0)}")
    finally:
        os.close(descriptor)
    return None if digest == file.sha256 else Defect(file.path, f"has the digest {digest}")


def _hash_descriptor(descriptor: int, wait: Wait) -> str:
    digest, buffer = sha256(), memoryview(bytearray(_BLOCK_BYTES))
    while count := os.readv(descriptor, [buffer]):
        digest.update(buffer[:count])
        if wait(0):
            raise StagingStoppedError
    return digest.hexdigest()
