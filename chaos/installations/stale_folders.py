"""Removal of work folders and small disks left by runs that were killed."""

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
_CLOCK_TOLERANCE_S: Final = 2.0


class Owner(msgspec.Struct, frozen=True):
    """The process that owns a work folder."""

    pid: int
    started_s: float  # process ids are reused

    def is_alive(self) -> bool:
        """Return whether the owner still runs."""
        try:
            started_s = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return False
        return (
            abs(started_s - self.started_s) < _CLOCK_TOLERANCE_S
        )  # `create_time` follows changes of the wall clock


def claim_folder(folder: Path) -> None:
    """Record this process as the folder's owner; the folder is removed once the owner is dead."""
    me = psutil.Process()
    (folder / _OWNER).write_bytes(msgspec.json.encode(Owner(me.pid, me.create_time())))


def remove_stale_folders(parent: Path, note: Callable[[str], None]) -> None:
    """Unmount and remove folders with a dead owner; folders without an owner are kept."""
    for folder in sorted(parent.glob(PATTERN)):
        try:
            owner = msgspec.json.decode((folder / _OWNER).read_bytes(), type=Owner)
            if owner.is_alive():
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
