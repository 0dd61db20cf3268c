"""Where the stack keeps its data and its downloads."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cli.stack.errors import DataFolderInUseError
from cli.stack.state.private_files import is_owned_folder
from core.errors import SettingsError

_LOG = logging.getLogger(__name__)

_LOCK: Final = "stack.lock"
_HOLD_TRIES: Final = 5
_HOLD_PAUSE_S: Final = 0.05
"""A look at the lock, see `is_locked`, takes microseconds; a stack holds it as long as it lives."""

_PRIVATE: Final = ("kafka", "logs", "objects", "postgres")
"""Folders in a data folder whose files others may not read."""

_NAMES: Final = {*_PRIVATE, "key", "lost+found", "ports.json", "stack.json", "webhook-key"}
"""What a data folder without its lock may hold: one that was copied, or prepared by hand."""


def cache_dir(env: Mapping[str, str]) -> Path:
    """Return `MILLRACE_CACHE`, or the user's cache folder."""
    if named := env.get("MILLRACE_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"


@contextmanager
def lock_data_folder(data_dir: Path) -> Iterator[None]:
    """Hold `data_dir` (made when absent) for one stack.

    The kernel drops the hold with the process, however that ends. Raises DataFolderInUseError, and
    SettingsError for a folder that holds files of somebody else.
    """
    _require_ours(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _hold(descriptor, data_dir)
        for name in _PRIVATE:
            _make_private(data_dir / name)
        yield
    finally:
        os.close(descriptor)


def is_locked(data_dir: Path) -> bool:
    """Whether a stack runs on `data_dir`, whatever one that was killed has left there."""
    try:
        descriptor = os.open(data_dir / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, so that of two that come at once one does the work."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOG.warning("waiting for another process", extra={"lock": str(path)})
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_ours(data_dir: Path) -> None:
    """Refuse what a stack would fill, and clear of temporary files, by mistake."""
    if not data_dir.is_dir() or (data_dir / _LOCK).exists():
        return
    if strangers := sorted({entry.name for entry in data_dir.iterdir()} - _NAMES):
        raise SettingsError(
            f"--data {data_dir} holds {strangers[0]}, which is not of `millrace up`: "
            "give an empty folder, or one of an earlier `millrace up`"
        )


def _make_private(folder: Path) -> None:
    """Make a folder, or close one of ours that a copy or an earlier release left open."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if is_owned_folder(folder) and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def _hold(descriptor: int, data_dir: Path) -> None:
    for _ in range(_HOLD_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_HOLD_PAUSE_S)
        else:
            return
    raise DataFolderInUseError(
        f"Another stack runs on {data_dir}: stop it, or give another folder by --data."
    )
