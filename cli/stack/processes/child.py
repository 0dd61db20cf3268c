"""Child processes that die with their parent, even when it is killed, and their log files."""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from cli.stack.processes.inherited_env import inherited_env
from core.runtime.role_lifecycle import READY

BACKOFF_S_MAX = 5.0

LOG_BYTES_MAX: Final = 10 * 1024 * 1024
"""A larger log is copied to `<name>.log.1` and truncated."""

_TAIL_BYTES: Final = 64 * 1024
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.1
_LIBC = ctypes.CDLL(None)  # loaded before any fork: a forked child must not load libraries


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """The command of a child process and how the supervisor starts and stops it."""

    name: str  # also the name of its log file
    role: str = ""  # empty: a service that is no role
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)  # added to what it inherits
    env_of_start: Callable[[], Mapping[str, str]] = dict  # added, made anew for each start
    inherits: tuple[str, ...] = ("*",)  # names of variables, see `inherited_env`
    cwd: str = "/"
    stage: int = 1  # higher stages stop first; children of one stage stop together
    stop_signal: signal.Signals = signal.SIGTERM
    parent_death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel
    stop_timeout_s: float = 8.0
    drain_timeout_s: float = 8.0  # when it alone is retired
    restart: bool = True
    niceness: int = 0  # above 0: lower priority than the other children
    backoff_s_max: float = BACKOFF_S_MAX  # longest wait before a restart
    before_start: Callable[[], None] = lambda: None  # removes what a killed predecessor left


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

    def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, then kill after `timeout_s`; a second Ctrl-C kills at once."""
        deadline_s = time.monotonic() + timeout_s
        try:
            self.send(signal.SIGTERM)
            while not self.has_ended() and time.monotonic() < deadline_s:
                time.sleep(_POLL_S)
        finally:
            self.kill_and_reap()

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

    log_dir.mkdir(parents=True, exist_ok=True)
    log_path = log_dir / f"{child.name}.log"
    rotate_log(log_path)
    with log_path.open("ab") as log:
        popen = subprocess.Popen(  # noqa: S603 (argv is ours)
            child.argv,
            env={
                **inherited_env(child.inherits, os.environ),
                **child.env,
                **child.env_of_start(),
            },
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


class _LogLine(msgspec.Struct):
    event: str | None = None
    reason: str | None = None


def rotate_log(path: Path) -> None:
    """Copy a log that is too large and truncate it; lines written meanwhile may be lost.

    The child keeps its open file, which it appends to. Does nothing when the copy fails.
    """
    with suppress(OSError):
        if path.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(path, path.with_suffix(".log.1"))
            os.truncate(path, 0)


def last_exit_reason(log: Path) -> str | None:
    """Return the `reason` of the last log line that has one, or None."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return None
    reasons = (_decode(line).reason for line in reversed(lines))
    return next((reason for reason in reasons if reason is not None), None)


class ReadinessLines:
    """Detects ready children by the `ready` event that each of them logs."""

    def __init__(self, log_dir: Path, names: Iterable[str]) -> None:
        """Create it before the children start: lines already in the logs are of earlier ones."""
        self._log_dir = log_dir
        self._ready: set[str] = set()
        logs = {name: log_dir / f"{name}.log" for name in names}
        self._offsets = {n: log.stat().st_size if log.exists() else 0 for n, log in logs.items()}

    def is_ready(self, name: str) -> bool:
        """Whether the child has logged the event."""
        log = self._log_dir / f"{name}.log"
        if name in self._ready:
            return True
        if log.exists() and any(_decode(line).event == READY for line in self._read(name, log)):
            self._ready.add(name)
        return name in self._ready

    def _read(self, name: str, log: Path) -> list[bytes]:
        """Return the complete lines appended since the last read."""
        if log.stat().st_size < self._offsets[name]:
            self._offsets[name] = 0  # the log was truncated
        with log.open("rb") as file:
            file.seek(self._offsets[name])
            complete, newline, _ = file.read().rpartition(b"\n")
        self._offsets[name] += len(complete) + len(newline)
        return complete.splitlines()


def _decode(line: bytes) -> _LogLine:
    """Return an empty line for one that is not of Millrace, or not complete."""
    try:
        return msgspec.json.decode(line, type=_LogLine)
    except msgspec.MsgspecError:
        return _LogLine()
