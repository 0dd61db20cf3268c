"""Child processes that report `@word …` lines on stdout and wait for lines on stdin.

They die with the benchmark. Other output on stdout is ignored, and stderr goes to a log file.
"""

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from benchmarks.runs import VoidRunError

ROOT = Path(__file__).parents[2]
STOP_S_MAX = 10.0

_PR_SET_PDEATHSIG = 1


class LineChild:
    """One `python -m MODULE ARGUMENTS`."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log_dir: Path) -> None:
        """Start the process; its stderr goes to `log_dir`."""
        self.name = name
        log_dir.mkdir(parents=True, exist_ok=True)
        with (log_dir / f"{name}.log").open("ab") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,
            )
        self._lines_read: queue.Queue[str | None] = queue.Queue()
        assert self._popen.stdout is not None
        threading.Thread(target=self._read_stdout, args=(self._popen.stdout,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def expect(self, word: str, timeout_s: float) -> str:
        """Wait until the child reports `@word` and return the rest of the line.

        Raises VoidRunError when it ends, reports something else, or exceeds the timeout.
        """
        try:
            line = self._lines_read.get(timeout=timeout_s)
        except queue.Empty:
            raise VoidRunError(
                f"{self.name} did not report @{word} within {timeout_s:g} s"
            ) from None
        if line is None:
            raise VoidRunError(f"{self.name} ended instead of reporting @{word}")
        found, _, rest = line.partition(" ")
        if found != f"@{word}":
            raise VoidRunError(f"{self.name} reported {found} instead of @{word}")
        return rest

    def send_line(self, line: str) -> None:
        """Send a line, which lets the child continue."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def close(self) -> None:
        """Close its stdin, then send SIGTERM and SIGKILL; kill the rest of its process group."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        for stop in (self._popen.terminate, self._popen.kill):
            try:
                self._popen.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                stop()
        self._popen.wait()
        with suppress(ProcessLookupError):  # an engine that outlives its server
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _read_stdout(self, stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                if line.startswith("@"):
                    self._lines_read.put(line.rstrip("\n"))
        self._lines_read.put(None)


def run_child(name: str, module: str, arguments: Sequence[str], folder: Path, s_max: float) -> Any:
    """Run a child until it reports `@result` and return its JSON. Raises VoidRunError."""
    with closing(LineChild(name, module, arguments, folder)) as child:
        return json.loads(child.expect("result", s_max))


def die_with_parent() -> None:
    """Have the kernel kill this process when the benchmark ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == 1:
        sys.exit(1)


def report_line(word: str, rest: str = "") -> None:
    """Report a line to the benchmark."""
    sys.stdout.write(f"@{word} {rest}".rstrip() + "\n")
    sys.stdout.flush()


def wait_for_line() -> str:
    """Return the next line from the benchmark; empty once its end is closed."""
    return sys.stdin.readline().rstrip("\n")
