"""Which children have said that they are ready, as their logs tell it."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from core.role_life import READY


class _Line(msgspec.Struct):
    event: str | None = None


class ReadinessLines:
    """Reads what children write to their logs from now on."""

    def __init__(self, log_dir: Path, names: Iterable[str]) -> None:
        """Call it before the children start: what their logs hold already is of earlier ones."""
        self._log_dir = log_dir
        self._ready: set[str] = set()
        logs = {name: log_dir / f"{name}.log" for name in names}
        self._read = {name: log.stat().st_size if log.exists() else 0 for name, log in logs.items()}

    def said(self, name: str) -> bool:
        """Whether `name` has said it."""
        log = self._log_dir / f"{name}.log"
        if name not in self._ready and log.exists() and any(map(_is_ready, self._news(name, log))):
            self._ready.add(name)
        return name in self._ready

    def _news(self, name: str, log: Path) -> list[bytes]:
        """Return the whole lines that came since the last look."""
        if log.stat().st_size < self._read[name]:
            self._read[name] = 0  # a log that was too large begins anew
        with log.open("rb") as file:
            file.seek(self._read[name])
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read[name] += len(whole) + len(newline)
        return whole.splitlines()


def _is_ready(line: bytes) -> bool:
    try:
        return msgspec.json.decode(line, type=_Line).event == READY
    except msgspec.MsgspecError:
        return False  # not a line of ours: a library's
