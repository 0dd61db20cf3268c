"""Runs the demo's stack: `millrace up` as a child process on a temporary data folder."""

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
"""A little more than the limit of `millrace up`, whose error message is more specific."""

STOP_S_MAX = 20.0
_POLL_S = 0.1
_PREFIX = "millrace-demo-"
_LOCK = "demo.lock"
_UNLOCKED_S_MAX = 60.0  # a new folder may not be locked by its demo yet
_NAME = "up"
_MESSAGE_PREFIX = "millrace:"
_READY = re.compile(rb"^ready (http://\S+) key (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class StackEndpoint:
    """The URL of a stack and the key of its tenant."""

    url: str
    key: str = field(repr=False)


@contextmanager
def demo_stack(models: Mapping[str, Path], logs_of_failure: Path) -> Iterator["StartingStack"]:
    """Yield a starting stack; stop its processes and remove its folder after the block.

    When the block fails, or on `keep_logs`, the logs are copied to `logs_of_failure`. If the demo
    is killed, the kernel sends the stack a SIGTERM.
    """
    remove_stale_folders(Path(tempfile.gettempdir()), time.time())
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = _lock_folder(folder, os.O_CREAT)
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
        os.close(lock)


def remove_stale_folders(folder: Path, now_s: float) -> None:
    """Remove the data folders of killed demos from `folder`; `now_s` is wall time.

    A running demo holds the lock of a file in its folder, which the kernel releases with the
    process. Folders without that file, or of another user, are kept.
    """
    for left in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # not a demo's folder, locked, or just removed
            found = left.lstat()
            if found.st_uid != os.geteuid() or now_s - found.st_mtime < _UNLOCKED_S_MAX:
                continue
            lock = _lock_folder(left)
            try:
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


def _lock_folder(folder: Path, flags: int = 0) -> int:
    """Lock a demo's folder and return the lock's file descriptor.

    Raises OSError when another process holds it or, without O_CREAT, when it has no lock file.
    """
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class StartingStack:
    """A stack that is starting."""

    def __init__(self, process: ChildProcess, logs: Path, kept_logs: Path) -> None:
        """`logs` holds the logs of `process`."""
        self._process, self._logs, self._kept_logs = process, logs, kept_logs
        self._log = logs / f"{_NAME}.log"

    def keep_logs(self) -> None:
        """Copy the logs of all roles to the folder for failures."""
        shutil.copytree(self._logs, self._kept_logs, dirs_exist_ok=True)

    def wait_until_ready(self) -> StackEndpoint:
        """Wait until the stack is ready. Raises StackError, StackTimeoutError."""
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s:
            if ready := _READY.search(self._log.read_bytes()):
                return StackEndpoint(ready[1].decode(), ready[2].decode())
            if self._process.has_ended():
                raise StackError(f"The stack did not start. {self._end_reason()}".rstrip())
            time.sleep(_POLL_S)
        raise StackTimeoutError(f"The stack was not ready within {READY_S_MAX:.0f} s.")

    def _end_reason(self) -> str:
        """Return the last message of `millrace up`, or an empty string."""
        messages = [
            line for line in self._log.read_text().splitlines() if line.startswith(_MESSAGE_PREFIX)
        ]
        return messages[-1].removeprefix(_MESSAGE_PREFIX).strip() if messages else ""


def _up(models: Mapping[str, Path], data: Path) -> Child:
    model_options = [
        text for name, path in models.items() for text in ("--model", f"{name}={path}")
    ]
    options = ("--engine", "vllm", "--port", "0", "--data", str(data))
    return Child(
        name=_NAME,
        argv=(sys.executable, "-m", "cli.main", "up", *options, *model_options),
        env={"PYTHONUNBUFFERED": "1"},
        dies_by=signal.SIGTERM,  # it stops its own children in order
    )


def _stop(process: ChildProcess) -> None:
    """Send SIGTERM and kill the process after a time, or at once on a second Ctrl-C."""
    try:
        process.send(signal.SIGTERM)
        deadline_s = time.monotonic() + STOP_S_MAX
        while not process.has_ended() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
    finally:
        process.reap()
