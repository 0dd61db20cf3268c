"""A full disk: a small tmpfs on a service's folder, filled to the last byte."""

import os
import subprocess
from pathlib import Path

from chaos.errors import DrillError
from chaos.faults.healing import Heal

_COMMAND_S_MAX = 20.0
_FILLER = "filler"
_CHUNK_BYTES = 1024 * 1024


def mount(folder: Path, size_mb: int) -> Heal:
    """Mount a tmpfs on `folder`. Raises DrillError where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ("-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755", "tmpfs", str(folder))
    found = subprocess.run(
        ("mount", *options), capture_output=True, text=True, timeout=_COMMAND_S_MAX, check=False
    )
    if found.returncode:
        raise DrillError(f"mount is not permitted here: {found.stderr.strip()}")

    return lambda: unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount a disk, even with open files. Raises DrillError."""
    found = subprocess.run(
        ("umount", "-l", str(folder)),
        capture_output=True,
        text=True,
        timeout=_COMMAND_S_MAX,
        check=False,
    )
    if found.returncode:
        raise DrillError(f"{folder} stays mounted, unmount it by hand: {found.stderr.strip()}")


def fill(folder: Path) -> Heal:
    """Allocate all free space, including space freed since the last call; healing frees it."""
    filler = folder / _FILLER
    descriptor = os.open(filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    size = _CHUNK_BYTES
    try:
        while size:
            try:
                os.write(descriptor, b"\0" * size)
            except OSError:
                size //= 2
    finally:
        os.close(descriptor)

    def free() -> None:
        filler.unlink(missing_ok=True)

    return free
