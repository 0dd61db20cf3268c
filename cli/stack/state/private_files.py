"""Atomic writes of files that only their owner may read, and the ownership of folders."""

import os
import stat
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path` atomically, with mode 0600; durable on return."""
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
        os.fsync(folder)  # makes the rename durable
    finally:
        os.close(folder)


def is_owned_folder(folder: Path) -> bool:
    """Whether this is a folder, not a link to one, that the effective user owns."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
