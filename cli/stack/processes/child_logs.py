"""The log files of child processes: rotation, readiness events and exit reasons."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from core.role_lifecycle import READY

LOG_BYTES_MAX: Final = 10 * 1024 * 1024
"""A larger log is copied to `<name>.log.1` and truncated."""

_TAIL_BYTES: Final = 64 * 1024


class _LogLine(msgspec.Struct):
    event: str | None = None
    reason: str | None = None


def rotate_log(path: Path) -> None:
    """Copy a log that is too large and truncate it; lines written meanwhile may be lost.

    The child keeps its open file, which it appends to. Does nothing when the copy fails.
    """
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)


def last_exit_reason(log: Path) -> str | None:
    """Return the `reason` of the last log line that has one, or None."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    reasons = (_decode(line).reason for line in reversed(lines))
    return next((reason for reason in reasons if reason is not None), None)


class ReadinessLines:
    """Detects ready children by the `ready` event that each of them logs."""

    def __init__(self, log_dir: Path, names: Iterable[str]) -> None:
        """Create it before the children start: lines already in the logs are of earlier ones."""
        self._log_dir = log_dir
        self._ready: set[str] = set()
        logs = {name: log_dir / f"{name}.log" for name in names}
        self._offsets = {n: log.stat().st_size if log.exists() else 0 for n, log in logs.items()}

    def is_ready(self, name: str) -> bool:
        """Whether the child has logged the event."""
        log = self._log_dir / f"{name}.log"
        if name in self._ready:
            return True
        if log.exists() and any(_decode(line).event == READY for line in self._read(name, log)):
            self._ready.add(name)
        return name in self._ready

    def _read(self, name: str, log: Path) -> list[bytes]:
        """Return the complete lines appended since the last read."""
        if log.stat().st_size < self._offsets[name]:
            self._offsets[name] = 0  # the log was truncated
        with log.open("rb") as file:
            file.seek(self._offsets[name])
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offsets[name] += len(complete) + len(newline)
        return complete.splitlines()


def _decode(line: bytes) -> _LogLine:
    """Return an empty line for one that is not of Millrace, or not complete."""
    try:
        return msgspec.json.decode(line, type=_LogLine)
    except msgspec.MsgspecError:
        return _LogLine()
