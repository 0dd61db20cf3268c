"""Runs `millrace up` for the demo as a child process on a temporary folder."""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cli.stack.errors import StackError, StackTimeoutError
from cli.stack.processes.child import Child, ChildProcess, spawn

READY_S_MAX = 330.0
"""Longer than the limit of `millrace up`, so that the reason which that reports is shown."""

STOP_S_MAX = 20.0
_POLL_S = 0.1
_PREFIX = "millrace-demo-"
_LOCK = "demo.lock"
_STALE_AFTER_S = 60.0  # a younger folder may be of a demo that has not locked it yet
_NAME = "up"
_MESSAGE_PREFIX = "millrace:"
_READY = re.compile(rb"^ready (http://\S+) key (\S+)$", re.MULTILINE)


@contextmanager
def demo_stack(options: Sequence[str], failure_logs: Path) -> Iterator["StartingStack"]:
    """Yield a starting `millrace up` with these options.

    At the end its processes are stopped and its folder is removed. When the block fails, or calls
    `keep_logs`, the logs are copied to `failure_logs`. When the demo is killed, the kernel sends
    the stack SIGTERM.
    """
    remove_stale_folders(Path(tempfile.gettempdir()), time.time())
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    data = folder / "data"
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(os.close, _lock(folder, os.O_CREAT))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        process = spawn(_up(options, data), data / "logs")
        cleanup.callback(process.stop, STOP_S_MAX)
        stack = StartingStack(process, data, failure_logs)
        try:
            yield stack
        except Exception:  # whatever the demo failed of: its logs tell, and it is raised again
            stack.keep_logs()
            raise


def remove_stale_folders(folder: Path, now_s: float) -> None:
    """Remove the folders of killed demos from `folder`; `now_s` is seconds since the epoch.

    A running demo holds a lock on a file in its folder. Folders without that file, and those of
    other users, remain.
    """
    for stale in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # not of a demo, locked, or just removed
            status = stale.lstat()
            if status.st_uid != os.geteuid() or now_s - status.st_mtime < _STALE_AFTER_S:
                continue
            lock = _lock(stale)
            try:
                shutil.rmtree(stale, ignore_errors=True)
            finally:
                os.close(lock)


def _lock(folder: Path, flags: int = 0) -> int:
    """Lock a demo's folder and return the file descriptor that holds the lock.

    Raises OSError when another process holds it, or, without O_CREAT, when there is no lock file.
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

    def __init__(self, process: ChildProcess, data: Path, kept_logs: Path) -> None:
        self.data = data
        self._process, self._logs, self._kept_logs = process, data / "logs", kept_logs
        self._log = self._logs / f"{_NAME}.log"

    def keep_logs(self) -> None:
        """Copy the logs of every role to the folder for failures."""
        shutil.copytree(self._logs, self._kept_logs, dirs_exist_ok=True)

    def wait_until_ready(self) -> tuple[str, str]:
        """Return the URL of the ready stack and a key. Raises StackError, StackTimeoutError."""
        deadline_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline_s:
            if ready := _READY.search(self._log.read_bytes()):
                return ready[1].decode(), ready[2].decode()
            if self._process.has_ended():
                raise StackError(f"The stack did not start. {self._last_message()}".rstrip())
            time.sleep(_POLL_S)
        raise StackTimeoutError(f"The stack was not ready within {READY_S_MAX:.0f} s.")

    def _last_message(self) -> str:
        """Return the last message of `millrace up`, or ""."""
        messages = [
            line for line in self._log.read_text().splitlines() if line.startswith(_MESSAGE_PREFIX)
        ]
        return messages[-1].removeprefix(_MESSAGE_PREFIX).strip() if messages else ""


def _up(options: Sequence[str], data: Path) -> Child:
    own = ("--port", "0", "--data", str(data))
    return Child(
        name=_NAME,
        argv=(sys.executable, "-m", "cli.main", "up", *own, *options),
        env={"PYTHONUNBUFFERED": "1"},
        parent_death_signal=signal.SIGTERM,  # then it stops its own children in order
    )
