"""Reads from the children's logs which of them are ready, and why one has ended."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from core.role_lifecycle import READY

_TAIL_BYTES: Final = 64 * 1024


class _Line(msgspec.Struct):
    event: str | None = None
    reason: str | None = None


class ReadinessLog:
    """Reads the lines that children append to their logs from now on."""

    def __init__(self, log_dir: Path, names: Iterable[str]) -> None:
        """Create it before the children start: older lines are of earlier processes."""
        self._log_dir = log_dir
        self._ready: set[str] = set()
        logs = {name: log_dir / f"{name}.log" for name in names}
        self._read = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}

    def is_ready(self, name: str) -> bool:
        """Whether the child `name` has logged that it is ready."""
        log = self._log_dir / f"{name}.log"
        if name not in self._ready and log.exists() and self._has_ready_line(name, log):
            self._ready.add(name)
        return name in self._ready

    def _has_ready_line(self, name: str, log: Path) -> bool:
        """Read the complete lines since the last call."""
        if log.stat().st_size < self._read[name]:
            self._read[name] = 0  # the log was rotated
        with log.open("rb") as file:
            file.seek(self._read[name])
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read[name] += len(complete) + len(newline)
        return any(_parsed(line).event == READY for line in complete.splitlines())


def last_reason(log: Path) -> str | None:
    """Return the last `reason` in a log, or None."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    reasons = (_parsed(line).reason for line in reversed(lines))
    return next((reason for reason in reasons if reason is not None), None)


def _parsed(line: bytes) -> _Line:
    """Return the fields of a log line, none of a library's or an incomplete one."""
    try:
        return msgspec.json.decode(line, type=_Line)
    except msgspec.MsgspecError:
        return _Line()
