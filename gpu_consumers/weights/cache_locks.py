"""Locks of the weight cache, between the processes and threads of one host.

They are `flock` locks of open descriptors: the kernel releases them when a process ends, however it
ends. They work on one host only, so a cache folder must not be shared between hosts.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gpu_consumers.weights.errors import StagingStoppedError

_POLL_S: Final = 0.05
_SHARDS_HEX: Final = 2
"""Digits of a digest that name its lock file: 256 files, however many digests there were."""

Wait = Callable[[float], bool]
"""Waits for so many seconds; returns true at once when the process stops (`Event.wait`)."""


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder if no other descriptor prevents it; return whether it did."""
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_when_free(descriptor: int, wait: Wait, *, shared: bool = False) -> None:
    """Wait until an open file or folder is locked. Raises StagingStoppedError."""
    while not try_lock(descriptor, shared=shared):
        if wait(_POLL_S):
            raise StagingStoppedError


@contextmanager
def locked_file(path: Path, wait: Wait) -> Iterator[None]:
    """Keep an exclusive lock of a lock file, which is created if it is missing.

    Raises StagingStoppedError, OSError.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        lock_when_free(descriptor, wait)
        yield
    finally:
        os.close(descriptor)


def lock_name(kind: str, digest: str) -> str:
    """Return the name of the lock file of a digest."""
    return f"{kind}-{digest[:_SHARDS_HEX]}"
