"""Writes files that only their owner can read."""

import os
import stat
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path` atomically and durably, with mode 600."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the new name
    finally:
        os.close(folder)


def is_own_folder(folder: Path) -> bool:
    """Whether this is a folder, not a link, that belongs to this user."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
