"""Python processes of a benchmark: they say `@word …` on stdout and are told to go on by a line.

They die with the benchmark. Whatever else they print on stdout is ignored, and stderr is kept.
"""

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from benchmarks.runs import VoidRunError

ROOT = Path(__file__).parents[2]
STOP_S_MAX = 10.0

_PR_SET_PDEATHSIG = 1


class LineChild:
    """One `python -m MODULE ARGUMENTS`."""

    def __init__(self, name: str, module: str, arguments: Sequence[str], log_dir: Path) -> None:
        """Start it; its stderr goes to `log_dir`."""
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
        self._said: queue.Queue[str | None] = queue.Queue()
        assert self._popen.stdout is not None
        threading.Thread(target=self._listen, args=(self._popen.stdout,), daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def expect(self, word: str, timeout_s: float) -> str:
        """Wait until the child says `@word` and return the rest of the line.

        Raises VoidRunError when it ends, says something else, or time is up.
        """
        try:
            said = self._said.get(timeout=timeout_s)
        except queue.Empty:
            raise VoidRunError(f"{self.name} did not say @{word} within {timeout_s:g} s") from None
        if said is None:
            raise VoidRunError(f"{self.name} ended instead of saying @{word}")
        found, _, rest = said.partition(" ")
        if found != f"@{word}":
            raise VoidRunError(f"{self.name} said {found} instead of @{word}")
        return rest

    def tell(self, line: str) -> None:
        """Let the child go on."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def stop(self) -> None:
        """End the child, politely at first, and whatever it has started."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait()
        with suppress(ProcessLookupError):  # an engine that its server has left behind
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _listen(self, stdout: IO[str]) -> None:
        with stdout:
            for line in stdout:
                if line.startswith("@"):
                    self._said.put(line.rstrip("\n"))
        self._said.put(None)


def die_with_parent() -> None:
    """Let the kernel end this process with the benchmark, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() == 1:
        sys.exit(1)


def say(word: str, rest: str = "") -> None:
    """Tell the benchmark something."""
    sys.stdout.write(f"@{word} {rest}".rstrip() + "\n")
    sys.stdout.flush()


def wait_for_line() -> str:
    """Return the next line that the benchmark tells; empty once it has nothing more to say."""
    return sys.stdin.readline().rstrip("\n")
