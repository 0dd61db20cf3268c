"""Reads from the children's logs which of them are ready."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from core.role_lifecycle import READY


class _Line(msgspec.Struct):
    event: str | None = None


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
        if (
            name not in self._ready
            and log.exists()
            and any(map(_is_ready, self._new_lines(name, log)))
        ):
            self._ready.add(name)
        return name in self._ready

    def _new_lines(self, name: str, log: Path) -> list[bytes]:
        """Return the complete lines since the last call."""
        if log.stat().st_size < self._read[name]:
            self._read[name] = 0  # the log was rotated
        with log.open("rb") as file:
            file.seek(self._read[name])
            complete, newline, _ = file.read().rpartition(b"\n")
        self._read[name] += len(complete) + len(newline)
        return complete.splitlines()


def _is_ready(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Line).event == READY
    except msgspec.MsgspecError:
        return False  # a library's line
