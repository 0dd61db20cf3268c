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
    _run("mount is not permitted here", "mount", *options)
    return lambda: unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount a disk, even with open files. Raises DrillError."""
    _run(f"{folder} stays mounted, unmount it by hand", "umount", "-l", str(folder))


def _run(failure: str, *command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_COMMAND_S_MAX, check=False
    )
    if done.returncode:
        raise DrillError(f"{failure}: {done.stderr.strip()}")


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
    return lambda: filler.unlink(missing_ok=True)
