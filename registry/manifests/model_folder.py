"""Reads a folder of model files: which files it has, and their digests.

Only regular files are read, by descriptors that follow no link, so that what is hashed is what lies
in the folder. Hidden files, such as those of Git, are not part of the model.
"""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Final

from registry.manifests.manifest import (
    FILES_MAX,
    InvalidManifestError,
    ManifestFile,
    check_paths,
)

_BLOCK_BYTES: Final = 1024 * 1024
_DEPTH_MAX: Final = 16
_THREADS: Final = 4


def scan_folder(folder: Path, *, allows_code: bool = False) -> tuple[ManifestFile, ...]:
    """Return the files of a model folder with their digests, by path.

    Raises InvalidManifestError for a link, a special file, or a file that may not be part of a
    model, and OSError.
    """
    paths = sorted(_find_files(folder, ""))
    check_paths(paths, allows_code=allows_code)
    with ThreadPoolExecutor(_THREADS) as pool:  # hashlib releases the interpreter's lock
        return tuple(pool.map(lambda path: hash_file(folder, path), paths))


def hash_file(folder: Path, path: str) -> ManifestFile:
    """Return size and digest of one file. Raises InvalidManifestError, OSError."""
    descriptor = open_regular(folder, path)
    digest, size = sha256(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return ManifestFile(path, size, digest.hexdigest())


def open_regular(folder: Path | int, path: str) -> int:
    """Return a descriptor of a regular file below `folder`; no part of `path` may be a link.

    `folder` may be an open descriptor, which stays open. Raises InvalidManifestError, OSError.
    """
    if isinstance(folder, int):
        parent = os.dup(folder)
    else:
        parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    *folders, name = path.split("/")
    try:
        for part in folders:
            child = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
            os.close(parent)
            parent = child
        # Without O_NONBLOCK, opening a pipe that took the place of the file would wait for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidManifestError(f"{path!r} is not a regular file.")
    return descriptor


def _find_files(folder: Path, prefix: str, depth: int = 0, count: int = 0) -> Iterator[str]:
    if depth > _DEPTH_MAX:
        raise InvalidManifestError(f"The folders are nested more than {_DEPTH_MAX} deep.")
    with os.scandir(folder / prefix) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if entry.name.startswith("."):
                continue
            if entry.is_symlink():
                raise InvalidManifestError(f"{path!r} is a symbolic link.")
            if entry.is_dir(follow_symlinks=False):
                for found in _find_files(folder, f"{path}/", depth + 1, count):
                    count += 1
                    yield found
            elif entry.is_file(follow_symlinks=False):
                count += 1
                yield path
            else:
                raise InvalidManifestError(f"{path!r} is not a regular file.")
            if count > FILES_MAX:
                raise InvalidManifestError(f"The model has more than {FILES_MAX} files.")
