"""The data folder of a stack, its lock, and the cache folder for downloads."""

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
_LOCK_ATTEMPTS: Final = 5
_LOCK_PAUSE_S: Final = 0.05
"""`is_locked` holds the lock for microseconds, so a few attempts suffice."""

_PRIVATE: Final = ("kafka", "logs", "objects", "postgres")
"""Folders in a data folder with mode 0700."""

_NAMES: Final = {*_PRIVATE, "key", "lost+found", "ports.json", "stack.json", "webhook-key"}
"""Allowed names in a data folder without a lock file: a copied or manually prepared folder."""


def cache_dir(env: Mapping[str, str]) -> Path:
    """Return `MILLRACE_CACHE`, or `millrace` in the user's cache folder."""
    if named := env.get("MILLRACE_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"


@contextmanager
def lock_data_folder(data_dir: Path) -> Iterator[None]:
    """Lock `data_dir`, created if absent, for one stack.

    The kernel releases the lock when the process ends. Raises DataFolderInUseError, and
    SettingsError for a folder with files that are not of a stack.
    """
    _require_stack_folder(data_dir)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(data_dir / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, data_dir)
        for name in _PRIVATE:
            _make_private(data_dir / name)
        yield
    finally:
        os.close(descriptor)


def is_locked(data_dir: Path) -> bool:
    """Whether a stack runs on `data_dir`. Files that a killed stack left do not count."""
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
    """Hold an exclusive lock on `path`; waits while another process holds it."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _LOG.warning("waiting for another process", extra={"lock": str(path)})
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _require_stack_folder(data_dir: Path) -> None:
    """Refuse an unrelated folder: a stack would add files to it and delete its `tmp`."""
    if not data_dir.is_dir() or (data_dir / _LOCK).exists():
        return
    if unknown := sorted({entry.name for entry in data_dir.iterdir()} - _NAMES):
        raise SettingsError(
            f"--data {data_dir} holds {unknown[0]}, which is not of `millrace up`: "
            "give an empty folder, or one of an earlier `millrace up`"
        )


def _make_private(folder: Path) -> None:
    """Create a folder with mode 0700; restrict an existing one that the user owns."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if is_owned_folder(folder) and folder.stat().st_mode & 0o077:
            folder.chmod(0o700)


def _lock(descriptor: int, data_dir: Path) -> None:
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_S)
        else:
            return
    raise DataFolderInUseError(
        f"Another stack runs on {data_dir}: stop it, or give another folder by --data."
    )
