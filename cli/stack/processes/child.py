"""Child processes that the kernel stops when their parent ends."""

import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

LOG_BYTES_MAX = 10 * 1024 * 1024
"""A larger log is copied to `<name>.log.1` and emptied."""

BACKOFF_S_MAX = 5.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a forked child may not load libraries


def _nothing() -> None:
    """Do nothing: the default of `Child.before_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A program and how to start and stop it."""

    name: str  # also the name of its log file
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the parent's environment
    cwd: str = "/"
    stage: int = 1  # a higher stage stops earlier; equal stages stop together
    stop_signal: signal.Signals = signal.SIGTERM
    dies_by: signal.Signals = signal.SIGKILL  # sent by the kernel when the parent ends
    stop_timeout_s: float = 8.0
    restart: bool = True
    niceness: int = 0  # above 0: lower priority than other children
    backoff_s_max: float = BACKOFF_S_MAX  # longest delay of a restart
    before_start: Callable[[], None] = _nothing  # cleans up after a killed predecessor


class Process(Protocol):
    """A running child, as the supervisor uses it."""

    @property
    def pid(self) -> int:
        """The process id, also the id of its process group."""
        ...

    def has_ended(self) -> bool:
        """Whether the process has ended; a zombie has."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        ...

    def reap(self) -> int:
        """Kill the rest of the process group, reap the process, and return its exit code."""
        ...


class ChildProcess:
    """A child that runs in a session and process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Own `popen`: no other code may wait for it."""
        self._popen = popen

    @property
    def pid(self) -> int:
        """See `Process`."""
        return self._popen.pid

    def has_ended(self) -> bool:
        """See `Process`. Does not reap the child, so that its ids are not reused yet."""
        if self._popen.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def send(self, number: signal.Signals) -> None:
        """See `Process`."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def reap(self) -> int:
        """See `Process`. Kills the group first: after reaping, its id may name another group."""
        if self._popen.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()


def spawn(child: Child, log_dir: Path) -> ChildProcess:
    """Start `child` and append its output to `<log_dir>/<name>.log`.

    Call it from the main thread only: the kernel stops the child when the forking thread ends.
    Raises OSError when the program cannot be run.
    """
    child.before_start()
    parent = os.getpid()
    dies_by = int(child.dies_by)

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, dies_by, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before `prctl`

    with _log_path(child.name, log_dir).open("ab") as log:
        popen = subprocess.Popen(  # noqa: S603 (argv is a constant of this program)
            child.argv,
            env={**os.environ, **child.env},
            cwd=child.cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (calls nothing that takes a lock)
        )
    if child.niceness:
        _lower_priority(popen.pid, child.niceness)
    return ChildProcess(popen)


def _lower_priority(pid: int, niceness: int) -> None:
    """Lower the priority of a new process and of its session's autogroup.

    With autogroups (sched(7)), a process's niceness only counts inside its group.
    """
    with suppress(OSError):  # the process may have ended; the kernel may lack autogroups
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def _log_path(name: str, log_dir: Path) -> Path:
    log_dir.mkdir(parents=True, exist_ok=True)
    path = log_dir / f"{name}.log"
    rotate_log(path)
    return path


def rotate_log(path: Path) -> None:
    """Copy and empty a log that is too large; lines written meanwhile may be lost.

    The writer appends, so it need not reopen the file. Does nothing on a full disk.
    """
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
