"""Where the stack keeps its data and its downloads."""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cli.stack.errors import DataFolderInUseError


def cache_dir(env: Mapping[str, str]) -> Path:
    """Return `MILLRACE_CACHE`, or the user's cache folder."""
    if named := env.get("MILLRACE_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "millrace"


@contextmanager
def exclusive(data_dir: Path) -> Iterator[None]:
    """Hold `data_dir` (made when absent) for one stack. Raises DataFolderInUseError.

    The kernel drops the hold with the process, however that ends.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(data_dir / "stack.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _hold(descriptor, data_dir)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on `path`, so that of two that come at once one does the work."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _hold(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataFolderInUseError(f"Another stack runs on {data_dir}.") from None
