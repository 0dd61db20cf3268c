"""Clean-up that a second signal does not interrupt, and removal of what killed runs left."""

import contextlib
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import msgspec
import psutil

from chaos.errors import DrillError
from chaos.faults.disk import unmount

EXIT_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATTERN: Final = "millrace-chaos-*"
_OWNER: Final = "owner.json"
_CLOCK_TOLERANCE_S: Final = 2.0


def raise_on_signals() -> None:
    """Turn SIGTERM and SIGHUP into SystemExit, so that `finally` blocks stop child processes."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _exit)


def _exit(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextmanager
def cleanup_on_exit() -> Iterator[contextlib.ExitStack]:
    """Yield an exit stack that is closed at the end of the block with further signals ignored.

    An interrupted clean-up would leave mounted disks and processes behind. Call this from the main
    thread.
    """
    closing = contextlib.ExitStack()
    try:
        yield closing
    finally:
        before = {number: signal.signal(number, signal.SIG_IGN) for number in EXIT_SIGNALS}
        try:
            closing.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


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
        # `create_time` follows changes of the wall clock.
        return abs(started_s - self.started_s) < _CLOCK_TOLERANCE_S


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
