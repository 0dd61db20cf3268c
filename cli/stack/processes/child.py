"""Starts child processes that die with their parent, even when the parent is killed."""

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cli.stack.processes.child_logs import rotate_log

BACKOFF_S_MAX = 5.0

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a forked child must not load libraries


def _do_nothing() -> None:
    """The default of `Child.before_start`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The command of a child process and how the supervisor starts and stops it."""

    name: str  # also the name of its log file
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # added to the parent's environment
    cwd: str = "/"
    stage: int = 1  # higher stages stop first; children of one stage stop together
    stop_signal: signal.Signals = signal.SIGTERM
    parent_death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel
    stop_timeout_s: float = 8.0
    restart: bool = True
    niceness: int = 0  # above 0: lower priority than the other children
    backoff_s_max: float = BACKOFF_S_MAX  # longest wait before a restart
    before_start: Callable[[], None] = _do_nothing  # removes what a killed predecessor left


class ChildProcess:
    """A child process in its own session and process group."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        """Own `popen`; no other code may wait for it."""
        self._popen = popen

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group."""
        return self._popen.pid

    def has_ended(self) -> bool:
        """Whether the process has exited. It is not reaped, so that its ids are not reused."""
        if self._popen.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, options) is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal; does nothing when the process has exited."""
        if not self.has_ended():
            os.kill(self.pid, number)

    def kill_and_reap(self) -> int:
        """Kill the rest of its process group, reap it and return its exit code.

        Kills first: after reaping, the id may name another group.
        """
        if self._popen.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)
        return self._popen.wait()


def spawn(child: Child, log_dir: Path) -> ChildProcess:
    """Start `child` and append its output to `<log_dir>/<name>.log`.

    Call it from the main thread only: the kernel sends the parent death signal when the thread
    that forked ends. Raises OSError when the program cannot be run.
    """
    child.before_start()
    parent = os.getpid()
    death_signal = int(child.parent_death_signal)

    def die_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
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
        _lower_priority(popen.pid, child.niceness)
    return ChildProcess(popen)


def _lower_priority(pid: int, niceness: int) -> None:
    """Set the niceness of a process and of its session's scheduling group.

    Where the kernel groups sessions (sched(7), autogroup), the niceness of a process only counts
    within its group.
    """
    with suppress(OSError):  # the process may have ended; the kernel may have no autogroups
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))


def _log_path(name: str, log_dir: Path) -> Path:
    log_dir.mkdir(parents=True, exist_ok=True)
    path = log_dir / f"{name}.log"
    rotate_log(path)
    return path
