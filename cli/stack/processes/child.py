"""A child process that ends with its parent, however the parent ends."""

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
"""A child's log that is larger goes on empty; what it held is in `<name>.log.1`."""

BACKOFF_S_MAX = 5.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a forked child may not load libraries


def _nothing() -> None:
    """The default of `Child.before_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """What to run, and how it ends."""

    name: str  # also the name of its log file
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the parent's environment
    cwd: str = "/"
    stage: int = 1  # a higher stage stops earlier; equal stages stop together
    stop_signal: signal.Signals = signal.SIGTERM
    parent_death_signal: signal.Signals = (
        signal.SIGKILL
    )  # sent by the kernel when the parent is gone
    stop_timeout_s: float = 8.0
    restart: bool = True
    niceness: int = 0  # above 0: it gives way to the others when the machine is busy
    backoff_s_max: float = (
        BACKOFF_S_MAX  # the longest wait before a start that follows deaths in a row
    )
    before_start: Callable[[], None] = _nothing  # clears what a killed predecessor left


class RunningChild(Protocol):
    """What the supervisor needs of a running child."""

    @property
    def pid(self) -> int:
        """The process id, also the id of its process group."""
        ...

    def has_ended(self) -> bool:
        """Whether it is dead; a zombie is dead."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Signal the process; nothing happens when it has ended."""
        ...

    def kill_and_reap(self) -> int:
        """Kill what is left of its process group, reap it, and return its exit code."""
        ...


class ChildProcess:
    """A child that runs in a session and process group of its own."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Take over `popen`, which nobody else may wait for."""
        self._popen = popen

    @property
    def pid(self) -> int:
        """See `RunningChild`."""
        return self._popen.pid

    def has_ended(self) -> bool:
        """See `RunningChild`. The dead child is not reaped yet, so its ids are not used again."""
        if self._popen.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def send(self, number: signal.Signals) -> None:
        """See `RunningChild`."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def kill_and_reap(self) -> int:
        """See `RunningChild`. The group goes first: once reaped, its id might name another group."""
        if self._popen.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()


def spawn(child: Child, log_dir: Path) -> ChildProcess:
    """Start `child`, its output appended to `<log_dir>/<name>.log`.

    Call it from the main thread only: the kernel ties the child's life to the thread that forks.
    Raises OSError when the program cannot be run.
    """
    child.before_start()
    parent = os.getpid()
    parent_death_signal = int(child.parent_death_signal)

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, parent_death_signal, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before the line above

    with _log_path(child.name, log_dir).open("ab") as log:
        popen = subprocess.Popen(  # noqa: S603 (argv is ours)
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
        _give_way(popen.pid, child.niceness)
    return ChildProcess(popen)


def _give_way(pid: int, niceness: int) -> None:
    """Lower the priority of a process that has just begun: of it, and of its session's group.

    Where the kernel groups sessions (sched(7), autogroup), niceness counts inside a group only.
    """
    with suppress(OSError):  # it may have ended already; the kernel may have no such groups
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def _log_path(name: str, log_dir: Path) -> Path:
    log_dir.mkdir(parents=True, exist_ok=True)
    path = log_dir / f"{name}.log"
    shorten_log(path)
    return path


def shorten_log(path: Path) -> None:
    """Empty a log that is too large and keep a copy; what is written meanwhile may be lost.

    Its writer appends, so it needs not know. Nothing happens where there is no room for a copy.
    """
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)
