"""The stack of the demo: `millrace up` as a child on a folder that goes with it."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.errors import StackError, StackTimeoutError
from cli.stack.processes.child import Child, ChildProcess, spawn

READY_S_MAX = 330.0
"""A little more than `millrace up` gives its models, so that its own reason is the one told."""

STOP_S_MAX = 20.0
_POLL_S = 0.1
_PREFIX = "millrace-demo-"
_LOCK = "demo.lock"
_YOUNG_S = 60.0  # a folder so young may belong to a demo that is about to lock it
_NAME = "up"
_SAYS = "millrace:"
_READY = re.compile(rb"^ready (http://\S+) key (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StackEndpoint:
    """Where a stack listens and the key of its tenant."""

    url: str
    key: str = field(repr=False)


@contextmanager
def demo_stack(models: Mapping[str, Path], logs_of_failure: Path) -> Iterator["StartingStack"]:
    """Yield a stack that is starting; leave no process and no folder behind.

    When the block fails, or asks for it, the logs are kept in `logs_of_failure`. A killed demo
    takes the stack along: the kernel tells it to stop.
    """
    remove_stale_folders(Path(tempfile.gettempdir()), time.time())
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    held = _held(folder, os.O_CREAT)
    data = folder / "data"
    try:
        process = spawn(_up(models, data), data / "logs")
        try:
            stack = StartingStack(process, data / "logs", logs_of_failure)
            try:
                yield stack
            except Exception:
                stack.keep_logs()
                raise
        finally:
            _stop(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_stale_folders(folder: Path, now_s: float) -> None:
    """Remove from `folder` what demos left behind that were killed; `now_s` is the time of day.

    A demo holds its folder by the lock of a file in it, which the kernel drops with the process.
    What only has such a name, or is of another user, stays.
    """
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # no folder of a demo, held, or just removed
            found = left.lstat()
            if found.st_uid != os.geteuid() or now_s - found.st_mtime < _YOUNG_S:
                continue
            held = _held(left)
            try:
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(held)


def _held(folder: Path, flags: int = 0) -> int:
    """Lock a demo's folder and return what holds it.

    Raises OSError when another process does, or, without O_CREAT, when no demo made it.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class StartingStack:
    """A stack on its way up."""

    def __init__(self, process: ChildProcess, logs: Path, kept_logs: Path) -> None:
        """Read what `process` says below `logs`."""
        self._process, self._logs, self._kept_logs = process, logs, kept_logs
        self._log = logs / f"{_NAME}.log"

    def keep_logs(self) -> None:
        """Copy what every role said so far to where a failure is looked into."""
        shutil.copytree(self._logs, self._kept_logs, dirs_exist_ok=True)

    def wait_until_ready(self) -> StackEndpoint:
        """Return where it listens. Raises StackError, StackTimeoutError."""
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s:
            if ready := _READY.search(self._log.read_bytes()):
                return StackEndpoint(ready[1].decode(), ready[2].decode())
            if self._process.has_ended():
                raise StackError(f"The stack did not start. {self._last_words()}".rstrip())
            time.sleep(_POLL_S)
        raise StackTimeoutError(f"The stack was not ready within {READY_S_MAX:.0f} s.")

    def _last_words(self) -> str:
        """Return why `millrace up` says that it ended, if it does."""
        said = [line for line in self._log.read_text().splitlines() if line.startswith(_SAYS)]
        return said[-1].removeprefix(_SAYS).strip() if said else ""


def _up(models: Mapping[str, Path], data: Path) -> Child:
    asked = [text for name, path in models.items() for text in ("--model", f"{name}={path}")]
    options = ("--engine", "vllm", "--port", "0", "--data", str(data))
    return Child(
        name=_NAME,
        argv=(sys.executable, "-m", "cli.main", "up", *options, *asked),
        env={"PYTHONUNBUFFERED": "1"},
        parent_death_signal=signal.SIGTERM,  # it then stops its own children in order
    )


def _stop(process: ChildProcess) -> None:
    """Ask it to stop, then make it; an impatient second Ctrl-C makes it at once."""
    try:
        process.send(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S_MAX
        while not process.has_ended() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    finally:
        process.kill_and_reap()
