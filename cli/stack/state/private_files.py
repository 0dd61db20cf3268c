"""Files that their owner alone reads, replaced as a whole, and the folders that they lie in."""

import os
import stat
from pathlib import Path


def write_private(path: Path, data: bytes) -> None:
    """Replace the file at `path`; also after a power cut it is the old one or the new one."""
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


def is_owned_folder(folder: Path) -> bool:
    """Whether this is a folder of ours: no link to one, and nobody else's."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
