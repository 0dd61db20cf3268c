"""Folders and small disks of runs that were killed before they could clean up."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import psutil

from chaos.errors import DrillError
from chaos.faults.disk import unmount

PATTERN: Final = "millrace-chaos-*"
_OWNER: Final = "owner.json"
_CLOCK_SET_S: Final = 2.0


class Owner(msgspec.Struct, frozen=True):
    """The process that a folder belongs to."""

    pid: int
    started_s: float  # a pid is given away again

    def lives(self) -> bool:
        """Whether it still runs."""
        try:
            started_s = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return False
        return abs(started_s - self.started_s) < _CLOCK_SET_S  # told by the wall clock


def claim(folder: Path) -> None:
    """Say that a folder belongs to this process, and is worth nothing without it."""
    me = psutil.Process()
    (folder / _OWNER).write_bytes(msgspec.json.encode(Owner(me.pid, me.create_time())))


def remove_stale_folders(parent: Path, note: Callable[[str], None]) -> None:
    """Unmount and remove folders whose owner is dead; one that nobody claimed was kept."""
    for folder in sorted(parent.glob(PATTERN)):
        try:
            owner = msgspec.json.decode((folder / _OWNER).read_bytes(), type=Owner)
            if owner.lives():
                continue
            for disk in psutil.disk_partitions(all=True):
                if Path(disk.mountpoint).is_relative_to(folder):
                    unmount(Path(disk.mountpoint))
        except (OSError, msgspec.DecodeError):
            continue
        except DrillError as failure:
            note(f"left {folder} as it is: {failure}")
            continue
        shutil.rmtree(folder, ignore_errors=True)
        note(f"removed {folder}, left by a run that was killed")
