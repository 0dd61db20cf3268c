"""Histories of client operations: one JSON line for each step, in the order of writing.

The phase `info` means that the outcome is unknown: the operation may or may not have happened. An
operation with phase `ok` must have happened.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

Phase = Literal["invoke", "ok", "fail", "info"]


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a client's operation."""

    t: float  # seconds since the epoch, by this machine's clock
    client: str
    op: str  # e.g. create, watch, probe
    key: str  # the object: a job's id, an idempotency key, a path
    phase: Phase
    detail: dict[str, Any] = {}  # fields of the response, never its body


class Recorder:
    """Appends operations to a file; thread-safe."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        """Create an empty history."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("wb")
        self._now_s = now_s
        self._lock = threading.Lock()

    def record(self, client: str, op: str, key: str, phase: Phase, **detail: object) -> None:
        """Append one step."""
        with self._lock:
            step = Operation(
                t=self._now_s(), client=client, op=op, key=key, phase=phase, detail=detail
            )
            self._file.write(msgspec.json.encode(step) + b"\n")

    def operations(self) -> list[Operation]:
        """Return the history so far."""
        with self._lock:
            self._file.flush()
        return list(read(self.path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> Iterator[Operation]:
    """Yield the operations of a history."""
    decoder = msgspec.json.Decoder(Operation)
    with path.open("rb") as lines:
        yield from map(decoder.decode, lines)
